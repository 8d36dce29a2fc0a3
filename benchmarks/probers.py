"""Neighbours that probe a device in use: with laggard's probes, or as Dragon's documentation describes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from laggard.collectors.device import Device, GpuDevice
from laggard.collectors.probe_schedule import ProbeSchedule
from laggard.collectors.probing import Probing

__all__ = ["INTERVAL", "PROBERS", "TINY", "TINY_EVERY_S", "Rounds"]

TINY = "tiny operations"
REPEATS = 3
INTERVAL = "LAGGARD_BENCH_INTERVAL_S"  # environment variable: seconds between rounds
TINY_S, TINY_EVERY_S = 2.0, 5.0
TINY_ELEMENTS = 16
TINY_AT_ONCE = 50
CALIBRATED_WITH = 2000  # operations
NAP_S = 0.01
Work = Callable[[], object]


class Stopwatch:
    """Measures the time while it is running; a schedule that uses it is suspended while it is stopped."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        """Return the seconds measured so far."""
        return self._before_s + (0.0 if self._since_s is None else time.monotonic() - self._since_s)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the stopwatch for the length of a block."""
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._before_s, self._since_s = self(), None


class Rounds:
    """Probe rounds on one device, as in a job.

    Parameters
    ----------
    device
        The device to probe.
    interval_s
        Time between rounds, measured by :attr:`watch`.
    max_intrusion
        Share of the device's time that the probes may take, for :meth:`scheduled_s`.
    """

    def __init__(self, device: Device, interval_s: float, max_intrusion: float = 1.0) -> None:
        self._probing = Probing(device, max_intrusion)
        self.watch = Stopwatch()
        self._schedule = ProbeSchedule(interval_s, self.watch())

    def run(self) -> None:
        """Run one round."""
        self._probing.end_round([self._probing.seconds() for _ in range(REPEATS)])
        self._schedule.advance(self.watch())

    def run_if_due(self) -> bool:
        """Run a round if one is due; return whether it was."""
        if self._schedule.wait_s(self.watch()) > 0:
            return False
        self.run()
        return True

    def scheduled_s(self, interval_s: float) -> float:
        """Return the seconds between rounds that the schedule chooses for a requested ``interval_s``."""
        return interval_s * self._probing.intrusion.stride(interval_s)


def probes(device: Device) -> Sequence[Work]:
    """Run probe rounds when they are due."""
    rounds = Rounds(device, float(os.environ[INTERVAL]))

    def go_on() -> None:
        with rounds.watch.running():
            if not rounds.run_if_due():
                time.sleep(NAP_S)

    return [_one_at_a_time(go_on)]


def tiny_operations(device: Device) -> Sequence[Work]:
    """Run tiny operations one after the other every 5 s, as many as take 2 s on an idle device.

    DragonHPC's documentation, "Telemetry", "Slow GPU detection": its collector times such a loop on every GPU.
    """
    module: Any = device.array_module
    a, b = (device.run(lambda: module.full(TINY_ELEMENTS, 1e-3, np.float32)) for _ in range(2))

    def some(count: int) -> None:
        if isinstance(device, GpuDevice):  # submit one after the other, wait at the end
            device.run(lambda: [module.multiply(a, b, out=a) for _ in range(count)])
        else:
            for _ in range(count):
                device.run(lambda: module.multiply(a, b, out=a))

    some(CALIBRATED_WITH)
    begun_s = time.perf_counter()
    some(CALIBRATED_WITH)
    count = round(CALIBRATED_WITH * TINY_S / (time.perf_counter() - begun_s))
    watch, schedule, left = Stopwatch(), ProbeSchedule(TINY_EVERY_S, 0.0), 0

    def go_on() -> None:
        nonlocal left
        with watch.running():
            if left > 0:
                some(TINY_AT_ONCE)
                left -= TINY_AT_ONCE
            elif schedule.wait_s(watch()) <= 0:
                left = count
                schedule.advance(watch())
            else:
                time.sleep(NAP_S)

    return [_one_at_a_time(go_on)]


def _one_at_a_time(work: Work) -> Work:
    """Return work that two threads may call at once, as a neighbour does when it starts."""
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            work()

    return locked


PROBERS: Mapping[str, Callable[[Device], Sequence[Work]]] = {
    "probe": probes,
    TINY: tiny_operations,
}
"""For each kind, the function that returns what its threads repeat."""
