"""Neighbours that probe a device beside a program: with laggard's probes, or as Dragon's documentation describes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
TINY_AT_ONCE = 50
CALIBRATED_WITH = 2000  # operations
NAP_S = 0.01
Work = Callable[[], object]


class Stopwatch:
    """Counts the seconds in which it runs: what is paced by it goes on where it was left."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self._before_s + (0.0 if self._since_s is None else time.monotonic() - self._since_s)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run for the length of a block."""
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._before_s, self._since_s = self(), None


class Rounds:
    """The rounds of probes of one device, as in a job.

    Parameters
    ----------
    device
        Which one.
    in_turn
        The other probes, one of which runs with each round.
    interval_s
        From one round to the next, of the time in which :attr:`watch` runs.
    max_intrusion
        The share of the device's time that they may take, for :meth:`scheduled_s`.
    """

    def __init__(self, device: Device, in_turn: Collection[str], interval_s: float, max_intrusion: float = 1.0) -> None:
        self._probing = Probing(device, in_turn, max_intrusion)
        self.watch = Stopwatch()
        self._turns = Turns(interval_s, self.watch())

    def run(self) -> None:
        """Run one."""
        self._probing.end_main([self._probing.main_seconds() for _ in range(REPEATS)])
        self._probing.other(self._turns.number, REPEATS)
        self._turns.taken(self.watch())

    def run_if_due(self) -> bool:
        """Run one if its turn has come; return whether it had."""
        if self._turns.wait_s(self.watch()) > 0:
            return False
        self.run()
        return True

    def scheduled_s(self, interval_s: float) -> float:
        """Return the seconds from round to round that the schedule chooses where ``interval_s`` is asked for."""
        return interval_s * self._probing.turns_apart(interval_s)


def probes(device: Device, in_turn: Collection[str]) -> Sequence[Work]:
    """Run rounds when they are due."""
    rounds = Rounds(device, in_turn, float(os.environ[INTERVAL]))

    def go_on() -> None:
        with rounds.watch.running():
            if not rounds.run_if_due():
                time.sleep(NAP_S)

    return [_one_at_a_time(go_on)]


def tiny_operations(device: Device) -> Sequence[Work]:
    """Run tiny operations one after the other: as many as take 2 s where nothing else runs, every 5 s.

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
    watch, turns, left = Stopwatch(), Turns(TINY_EVERY_S, 0.0), 0

    def go_on() -> None:
        nonlocal left
        with watch.running():
            if left > 0:
                some(TINY_AT_ONCE)
                left -= TINY_AT_ONCE
            elif turns.wait_s(watch()) <= 0:
                left = count
                turns.taken(watch())
            else:
                time.sleep(NAP_S)

    return [_one_at_a_time(go_on)]


def _one_at_a_time(work: Work) -> Work:
    """Return work that two threads may call: a neighbour does so in its beginning."""
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            work()

    return locked


PROBERS: Mapping[str, Callable[[Device], Sequence[Work]]] = {
    "probe": lambda device: probes(device, ()),
    IN_TURN: lambda device: probes(device, PROBE_NAMES),
    TINY: tiny_operations,
}
"""By kind, what makes the work of its threads."""
