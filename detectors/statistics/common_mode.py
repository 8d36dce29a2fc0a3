"""The common mode: how slow each group is as a whole. A change of it is nobody's fault, but worth a word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.detectors.statistics.estimates import DEVIATION_PER_DISTANCE, Floats
from laggard.detectors.statistics.history import WARM_UP

_ROUNDS = 5  # in a row that are as slow; then the new pace is the usual one
_SMALLEST = 1.1  # a smaller shift may be the room's temperature
_NOISES = 5.0  # standard deviations of the group's round, as against the own past


@dataclass(frozen=True, slots=True)
class Shift:
    """A lasting change of a group's pace."""

    group: int  # the group's number
    ratio: float  # its time over its usual time
    since_s: float  # Unix time of the first such round; `NaN` if unknown


class CommonMode:
    """Follows each group's pace; the usual pace is the median of the last eight rounds before a shift."""

    def __init__(self, groups: int) -> None:
        self._last = np.zeros((0, groups), np.float32)
        self._rounds_off = np.zeros(groups, np.intp)  # in a row; negative: faster than usual
        self._since_s = np.full(groups, np.nan)

    def add(self, pace: Floats, now_s: float) -> list[Shift]:
        """Add a round's log seconds of each group, ``NaN`` if unknown; return new shifts."""
        if len(self._last) < WARM_UP:
            self._last = np.concatenate([self._last, pace[None]])
            return []
        usual = np.median(self._last, axis=0)
        noise, change = DEVIATION_PER_DISTANCE * np.median(np.abs(self._last - usual), axis=0), pace - usual
        is_off = np.abs(change) > np.maximum(np.float32(np.log(_SMALLEST)), np.float32(_NOISES) * noise)
        side = np.where(is_off, np.sign(change), 0).astype(np.intp)
        goes_on = side * self._rounds_off > 0
        self._since_s = np.where(goes_on, self._since_s, now_s)
        self._rounds_off = np.where(goes_on, self._rounds_off, 0) + side
        unknown = np.isnan(self._last[-1]) & ~np.isnan(pace)
        self._last = np.where(is_off | np.isnan(pace), self._last, np.concatenate([self._last[1:], pace[None]]))
        self._last = np.where(unknown, pace, self._last)
        return [self._settled(group, change) for group in np.flatnonzero(np.abs(self._rounds_off) >= _ROUNDS).tolist()]

    def _settled(self, group: int, change: Floats) -> Shift:
        self._last[:, group] += change[group]
        self._rounds_off[group] = 0
        return Shift(group, float(np.exp(change[group])), float(self._since_s[group]))
