"""Records how far each launch has come, and when: often enough to tell where a job's time went, and no more."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from laggard.telemetry.course import LaunchProgressed, Progress

MIN_INTERVAL_S = 1.0  # a point a second, at first
MAX_INTERVAL_S = 300.0  # the file of a year stays small
# An entry for each 5 % of a launch's age: ten minutes have some hundred entries, a week has two thousand.
AGE_SHARE = 0.05

_Signs = tuple[int, str | None]


class ProgressLog:
    """Takes a launch's signs of life from any thread; writes those worth an entry to the journal.

    Each entry has the time at which its signs were first seen. A change that is not due yet is held back until it is,
    or until the launch is over; so the last change before a hang is recorded with its own time.
    """

    def __init__(self, take_note: Callable[[LaunchProgressed], object], clock: Callable[[], float] = time.time) -> None:
        self._take_note = take_note  # records an entry
        self._clock = clock  # Unix time
        self._lock = threading.Lock()
        self._launch = -1
        self._began_s = 0.0
        self._due_s = 0.0
        self._signs: _Signs | None = None
        self._held: tuple[float, _Signs] | None = None

    def see(self, launch: int, commits: int, step: str | None) -> None:
        """Take the signs of life of a launch as they are now; those of a launch that is over are ignored."""
        with self._lock:
            now_s, signs = self._clock(), (commits, step)
            if launch < self._launch:
                return
            if launch > self._launch:
                self._write_held()
                self._launch, self._began_s, self._due_s, self._signs = launch, now_s, now_s, None
            if signs != self._signs:
                self._signs, self._held = signs, (now_s, signs)
            if now_s >= self._due_s:
                self._write_held()

    def close(self) -> None:
        """Write what was held back."""
        with self._lock:
            self._write_held()

    def _write_held(self) -> None:
        if self._held is None:
            return
        seen_s, (commits, step) = self._held
        self._held = None
        # The signs at a launch's start are no progress yet, and do not delay the first that is.
        if seen_s > self._began_s:
            interval_s = AGE_SHARE * (seen_s - self._began_s)
            self._due_s = self._clock() + min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
        number = math.nan if step is None else float(step)
        self._take_note(
            LaunchProgressed(
                self._launch, Progress(round(seen_s, 3), commits, number if math.isfinite(number) else None)
            )
        )
