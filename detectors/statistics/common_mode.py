"""The common mode: a log time that many share, against its own past. A shift is nobody's fault, but worth a word."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

from laggard.detectors.notices import Shift
from laggard.detectors.statistics.history import WARM_UP, WHOLE

SMALLEST = float(np.log(1.1))  # a smaller shift may be the room's temperature
_ROUNDS = 5  # that are off, less those that are not: a disturbance of all is seldom as long
_DISTANCES = 7.4  # median distances of a round from the middle; five standard deviations of normal noise
# Nobody acts on the notice, so it waits until an evaluation of 90 s, and a checkpoint of 21 s soon after it, would have
# ended; what lasts for an hour is no phase.
_LEAST_S, _MOST_S = 150.0, 3600.0
_WORSE = 1.5  # times the logs of what was told, and as much more as matters: worth another word
_TIMES, _REMEMBERED = 1.5, 8  # the longest of the last eight that ended by themselves: as for a device's phases


def known_time(time_s: float) -> float | None:
    """Return a time, ``None`` if it is not known."""
    return None if np.isnan(time_s) else time_s


class CommonMode:
    """Follows one log time from round to round.

    It has shifted if it is off for longer than anything half as large that ended by itself.
    """

    def __init__(self, past: float = np.nan, ended: deque[tuple[float, float]] | None = None) -> None:
        self.past = past  # what is usual; if it is not given, the faster third of the first rounds
        self._calm = deque([] if np.isnan(past) else [past] * WHOLE, WHOLE)  # the last rounds that are not off
        self._level, self._since_s = 0.0, np.nan  # slower than usual, as was told; 0: nothing was
        self._side = self._count = 0  # of rounds that are off: 1 if slower, -1 if faster; how many, less the others
        self._begun_s, self._run = np.nan, deque[tuple[float, float]](maxlen=WHOLE)  # times and changes of these
        # Seconds and sizes of the last ones that ended by themselves; may be shared with others
        self.ended: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED) if ended is None else ended

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than usual, for long enough or not."""
        return self._level > 0 or self._side > 0

    def add(self, log_time: float, now_s: float, smallest: float, *, is_sure: bool = True) -> Shift | None:
        """Add a round, ``NaN`` if it is not known; return what is new, if it matters and is sure."""
        if np.isnan(log_time):
            return None
        if np.isnan(self.past):
            self._learn(log_time)
            return None
        change, middle = log_time - self.past, median(self._calm)
        limit = max(SMALLEST, smallest, _DISTANCES * median(abs(each - middle) for each in self._calm))
        low, high = self._level / 2 or -limit, _WORSE * self._level + limit
        self._add_to_run(int(change > high) - int(change < low), change, now_s)
        if not self._side and not self._level:
            self._learn(log_time)
        if self._count < _ROUNDS or not is_sure:
            return None
        times_s, changes = zip(*self._run, strict=True)
        size = median(changes[len(changes) // 2 :])  # a smaller phase may have gone before it
        first = next(place for place, each in enumerate(changes) if each >= size / 2) if self._side > 0 else 0
        begun_s = times_s[first] if first else self._begun_s
        alike = [seconds for seconds, of_run in self.ended if self._side > 0 and of_run >= size / 2]
        wait_s = max(_LEAST_S, min(_MOST_S, _TIMES * max(alike, default=0.0)))
        if low <= size <= high or now_s - begun_s < wait_s:
            return None
        return self._shifted(size, begun_s, limit)

    def _learn(self, log_time: float) -> None:
        is_whole = len(self._calm) == WHOLE
        self._calm.append(log_time)
        if not is_whole and (len(self._calm) >= WARM_UP or not np.isnan(self.past)):
            self.past = sorted(self._calm)[(len(self._calm) - 1) // 3]  # phases only add

    def _add_to_run(self, side: int, change: float, now_s: float) -> None:
        is_over = self._count == 1 and not side
        if self._side and (is_over or side == -self._side):
            if not self._level:
                self.ended.append((now_s - self._begun_s, median(change for _, change in self._run)))
            self._side = self._count = 0
        if side and not self._side:
            self._side, self._begun_s = side, now_s
            self._run.clear()
        if self._side:
            self._run.append((now_s, change))
            self._count = min(self._count + (1 if side else -1), _ROUNDS)

    def _shifted(self, size: float, begun_s: float, limit: float) -> Shift | None:
        before, since_s = self._level, self._since_s
        self._level = size if size > limit else 0.0
        self._side = self._count = 0
        if size < -limit:  # faster ones are the usual from now on
            past = self.past
            self._calm.clear()
            for _, change in self._run:
                self._learn(past + change)
        if self._level > before:
            self._since_s = since_s if before else begun_s
            return Shift(float(np.exp(size)), known_time(begun_s))
        if self._level or not before:
            return None
        self.ended.append((begun_s - since_s, before))
        return Shift(float(np.exp(before)), known_time(since_s), over_s=known_time(begun_s), is_over=True)
