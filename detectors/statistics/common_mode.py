"""The common mode: a log time that many share, against its own past. A shift is nobody's fault, but worth a word."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from laggard.detectors.notices import Shift
from laggard.detectors.statistics.history import WARM_UP, WHOLE
from laggard.detectors.statistics.readings import DEVIATION_PER_DISTANCE

SMALLEST = float(np.log(1.1))  # a smaller shift may be the room's temperature
_ROUNDS = 5  # that are off, less those that are not: a disturbance of all is seldom as long
_NOISES = 5.0  # standard deviations of a round
# Nobody acts on the notice, so it waits until an evaluation of 90 s, and a checkpoint of 21 s soon after it, would have
# ended; what lasts for an hour is no phase.
_LEAST_S, _MOST_S = 150.0, 3600.0
_WORSE = 1.5  # times the logs of what was told, and as much more as matters: worth another word
_TIMES, _REMEMBERED = 1.5, 8  # the longest of the last eight that ended by themselves: as for a device's phases

Ended = deque[tuple[float, float]]
"""Seconds and sizes of runs that ended by themselves."""


def remembered() -> Ended:
    """Return room for the last runs."""
    return deque(maxlen=_REMEMBERED)


def known_time(time_s: float) -> float | None:
    """Return a time, ``None`` if it is not known."""
    return None if np.isnan(time_s) else time_s


@dataclass(slots=True)
class _Run:
    """Rounds that are off, and those in between."""

    side: int  # 1 if slower, -1 if faster
    since_s: float  # times of the first and the last one that is off
    until_s: float
    count: int = 0  # of those that are off, less the others; no more than are needed
    rounds: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WHOLE))  # times and changes

    def size_and_begin(self) -> tuple[float, float]:
        """Return how large the change is, and since when it is: a smaller phase may have gone before it."""
        times_s, changes = zip(*self.rounds, strict=True)
        half = median(changes[-_ROUNDS:]) / 2
        first = next(place for place, each in enumerate(changes) if each >= half) if self.side > 0 else 0
        return median(changes[first:]), times_s[first] if first else self.since_s


class CommonMode:
    """Follows one log time from round to round.

    It has shifted if it is off for longer than anything half as large that ended by itself.
    """

    def __init__(self, past: float = np.nan, ended: Ended | None = None) -> None:
        self._past = past  # what is usual: the faster third of the first rounds that are not off, unless it is given
        self._calm = deque([] if np.isnan(past) else [past] * WHOLE, WHOLE)  # the last rounds that are not off
        self._slower, self._slower_since_s = 0.0, np.nan  # than usual, as was told; 0: nothing was
        self._run: _Run | None = None
        self._ended = remembered() if ended is None else ended  # may be shared with others

    @property
    def is_learned(self) -> bool:
        """Whether what is usual is known."""
        return not np.isnan(self._past)

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than usual, for long enough or not."""
        return self._slower > 0 or (self._run is not None and self._run.side > 0)

    def add(self, log_time: float, now_s: float, smallest: float, *, is_sure: bool = True) -> Shift | None:
        """Add a round, ``NaN`` if it is not known; return what is new, if it matters and is sure."""
        if np.isnan(log_time):
            return None
        if not self.is_learned:
            self._learn(log_time)
            return None
        change, middle = log_time - self._past, median(self._calm)
        noise = float(DEVIATION_PER_DISTANCE) * median(abs(each - middle) for each in self._calm)
        limit = max(SMALLEST, smallest, _NOISES * noise)
        low, high = self._slower / 2 or -limit, _WORSE * self._slower + limit
        self._add_to_run(int(change > high) - int(change < low), change, now_s)
        if self._run is None and not self._slower:
            self._learn(log_time)
        if self._run is None or self._run.count < _ROUNDS or not is_sure:
            return None
        size, since_s = self._run.size_and_begin()
        alike = [seconds for seconds, of_run in self._ended if self._run.side > 0 and of_run >= size / 2]
        wait_s = max(_LEAST_S, min(_MOST_S, _TIMES * max(alike, default=0.0)))
        if low <= size <= high or now_s - since_s < wait_s:
            return None
        return self._shifted(self._run, size, since_s, limit)

    def _learn(self, log_time: float) -> None:
        is_whole = len(self._calm) == WHOLE
        self._calm.append(log_time)
        if not is_whole and (self.is_learned or len(self._calm) >= WARM_UP):
            self._past = sorted(self._calm)[(len(self._calm) - 1) // 3]  # phases only add

    def _add_to_run(self, side: int, change: float, now_s: float) -> None:
        if side and (self._run is None or side != self._run.side):
            self._end_run()
            self._run = _Run(side, now_s, now_s)
        if self._run is None:
            return
        self._run.rounds.append((now_s, change))
        self._run.until_s = now_s if side else self._run.until_s
        self._run.count = min(self._run.count + (1 if side else -1), _ROUNDS)
        if not self._run.count:
            self._end_run()

    def _end_run(self) -> None:
        if self._run and not self._slower:
            self._ended.append((self._run.until_s - self._run.since_s, median(each for _, each in self._run.rounds)))
        self._run = None

    def _shifted(self, run: _Run, size: float, begun_s: float, limit: float) -> Shift | None:
        before, since_s = self._slower, self._slower_since_s
        self._run, self._slower = None, size if size > limit else 0.0
        if size < -limit:  # faster ones are the usual from now on
            past, self._calm = self._past, deque(maxlen=WHOLE)
            for _, change in run.rounds:
                self._learn(past + change)
        if self._slower > before:
            self._slower_since_s = since_s if before else begun_s
            return Shift(float(np.exp(size)), known_time(begun_s))
        if self._slower or not before:
            return None
        self._ended.append((begun_s - since_s, before))
        return Shift(float(np.exp(before)), known_time(since_s), over_s=known_time(begun_s), is_over=True)
