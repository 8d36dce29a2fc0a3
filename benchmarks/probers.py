"""Neighbours that probe a device beside a program: with laggard's probes, or as Dragon's documentation describes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from collectors.device import Device, GpuDevice
from collectors.probes import PROBE_NAMES
from collectors.probing import Probing
from collectors.turns import Turns

__all__ = ["INTERVAL", "IN_TURN", "PROBERS", "TINY", "TINY_EVERY_S", "Rounds"]

IN_TURN, TINY = "probes in turn", "tiny operations"
REPEATS = 3
INTERVAL = "LAGGARD_BENCH_INTERVAL_S"  # in the environment: seconds from one round to the next
TINY_S, TINY_EVERY_S = 2.0, 5.0
TINY_ELEMENTS = 16
CALIBRATED_WITH = 2000  # operations
Work = Callable[[], object]


class Rounds:
    """The rounds of probes of one device, as in a job.

    Parameters
    ----------
    device
        Which one.
    in_turn
        The other probes, one of which runs with each round.
    interval_s
        From one round to the next.
    max_intrusion
        The share of the device's time that they may take, for :attr:`apart`.
    """

    def __init__(self, device: Device, in_turn: Collection[str], interval_s: float, max_intrusion: float = 1.0) -> None:
        self._probing = Probing(device, in_turn, max_intrusion)
        self._interval_s = interval_s
        self._turns = Turns(interval_s, time.monotonic())
        self.done = 0

    def wait_s(self) -> float:
        """Return the seconds until the next round is due."""
        return self._turns.wait_s(time.monotonic())

    def run(self) -> None:
        """Run one."""
        self._probing.end_main([self._probing.main_seconds() for _ in range(REPEATS)])
        self._probing.other(self._turns.number, REPEATS)
        self._turns.taken(time.monotonic())
        self.done += 1

    def resume(self) -> None:
        """Let the next round be due now."""
        self._turns = Turns(self._interval_s, time.monotonic())

    def scheduled_s(self, interval_s: float) -> float:
        """Return the seconds from round to round that the schedule chooses where ``interval_s`` is asked for."""
        return interval_s * self._probing.turns_apart(interval_s)


def probes(device: Device, in_turn: Collection[str]) -> Sequence[Work]:
    """Run rounds when they are due."""
    rounds = Rounds(device, in_turn, float(os.environ[INTERVAL]))

    def wait_and_run() -> None:
        time.sleep(min(rounds.wait_s(), 0.1))  # it is to rest soon when it is told to
        if rounds.wait_s() <= 0:
            rounds.run()

    return [wait_and_run]


def tiny_operations(device: Device) -> Sequence[Work]:
    """Run tiny operations one after the other, for 2 s of every 5 s.

    DragonHPC, "Telemetry", "Slow GPU detection": its collector times such a loop on every GPU.
    """
    module: Any = device.array_module
    a, b = (device.run(lambda: module.full(TINY_ELEMENTS, 1e-3, np.float32)) for _ in range(2))

    def some(count: int) -> None:
        if isinstance(device, GpuDevice):  # submitted one after the other, and waited for at the end
            device.run(lambda: [module.multiply(a, b, out=a) for _ in range(count)])
        else:
            for _ in range(count):
                device.run(lambda: module.multiply(a, b, out=a))

    some(CALIBRATED_WITH)
    begun_s = time.perf_counter()
    some(CALIBRATED_WITH)
    count = round(CALIBRATED_WITH * TINY_S / (time.perf_counter() - begun_s))
    due_s = [0.0]

    def wait_and_run() -> None:
        time.sleep(max(0.0, min(due_s[0] - time.monotonic(), 0.1)))
        if time.monotonic() >= due_s[0]:
            due_s[0] = time.monotonic() + TINY_EVERY_S
            some(count)

    return [wait_and_run]


PROBERS: Mapping[str, Callable[[Device], Sequence[Work]]] = {
    "probe": lambda device: probes(device, ()),
    IN_TURN: lambda device: probes(device, PROBE_NAMES),
    TINY: tiny_operations,
}
"""By kind, what makes the work of its threads."""
