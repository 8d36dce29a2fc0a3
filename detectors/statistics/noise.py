"""How noisy readings are, of a group and of each device: how much, and for how long that lasts. Variances of logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.estimates import DEVIATION_PER_DISTANCE, Floats
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import WARM_UP, WHOLE, History

NOISES = 1.5  # noise that lasts for fewer rounds does not last; and the smallest size of a slowdown, in noises
_SEEN, _LEFT = (
    np.float32(4.0),
    np.float32(0.7738),
)  # a residual counts as two noises at most; what that leaves of normal
_ROUND = np.float32(9.0)  # and a round as three of its group's
_QUIETEST = 16.0  # of the smallest slowdown that matters, one part: what looks less noisy is so by chance


def seen(square: Floats, variance: Floats) -> Floats:
    """Return the squares of residuals as they count in a device's noise."""
    return np.asarray(np.minimum(square, _SEEN * variance) / _LEFT)


def limit(variance: Floats) -> Floats:
    """Return how far a residual counts."""
    return np.asarray(np.sqrt(_SEEN * variance))


@dataclass
class Noise(Arrays):
    """The noise of each group: a mean over 64 rounds."""

    size: Floats = of()  # by the distance from the past, which includes what the past is wrong by
    change: Floats = of()  # by the change between rounds
    early: Floats = of()  # in the rounds before there is a past
    rounds: Floats = of()  # of which it is the mean
    n_early: Floats = of()  # and of which the early one is
    told: NDArray[np.bool_] = of(dtype=np.bool_)  # that it hides slowdowns that matter
    least: np.float32 = np.float32(0)  # no variance is taken to be less

    def set_least(self, smallest: float) -> None:
        """Set the least noise, given the smallest slowdown that matters."""
        self.least = np.float32((smallest / _QUIETEST) ** 2)

    def add_early(self, repeat_noise: Floats, changes: Floats, grouping: Grouping) -> None:
        """Add a round before there is a past: the noise of its repeats, else the change since the round before."""
        by_change = (DEVIATION_PER_DISTANCE * grouping.high_median(np.abs(changes))) ** 2 / 2
        by_repeats = grouping.high_median(repeat_noise) ** 2
        most_have = 2 * grouping.count(~np.isnan(repeat_noise)) >= grouping.sizes  # those of a few are not the group's
        now = np.where(most_have, by_repeats, by_change)
        known = ~np.isnan(now) & (self.rounds == 0)
        now = np.where(self.n_early > 0, np.minimum(now, _ROUND * np.maximum(self.early, self.least)), now)
        self.n_early += known
        self.early += np.where(known, (now - self.early) / np.maximum(self.n_early, 1), 0)

    def add(self, residual: Floats, last: Floats, grouping: Grouping, crowded: NDArray[np.bool_]) -> None:
        """Add a round's residuals against the past; those of groups that are half slow are no noise."""
        distance, change = (
            (DEVIATION_PER_DISTANCE * grouping.high_median(np.abs(each))) ** 2 for each in (residual, residual - last)
        )
        change /= 2
        known = ~(np.isnan(distance) | np.isnan(change) | crowded)
        distance = np.where(grouping.sizes == 2, change, distance)  # of two devices, the distance is the fault itself
        first = known & (self.rounds == 0)
        self.rounds = np.where(first, np.float32(WARM_UP // 2), np.minimum(self.rounds + known, WHOLE))
        for mean, now in ((self.size, distance), (self.change, change)):
            mean[first] = np.where(self.n_early > 0, self.early, now)[first]
            now = np.minimum(now, _ROUND * np.maximum(mean, self.least))
            mean += np.where(known, (now - mean) / np.maximum(self.rounds, 1), 0)

    def variance(self) -> Floats:
        """Return the noise that a device has at least; ``NaN`` before anything is known."""
        known = np.where(self.n_early > 0, self.early, np.float32(np.nan))
        return np.maximum(np.where(self.rounds > 0, self.size, known), self.least)

    def lasts(self) -> Floats:
        """Return how many rounds one independent reading is worth: of AR(1) noise (1 + r) / (1 - r), exactly."""
        ratio = 2 * np.maximum(self.size, self.least) / np.maximum(self.change, self.least) - 1
        return np.where(ratio < NOISES, np.float32(1), ratio)

    def of_devices(self, history: History, grouping: Grouping) -> Floats:
        """Return each device's noise: its own, and its group's if that is more, as a few rounds are little."""
        of_group = grouping.per_device(self.variance())
        lasting = np.maximum(1, np.maximum(self.size, self.least) / np.maximum(self.change, self.least))
        own = np.maximum(history.change * grouping.per_device(lasting), history.distance)
        mixed = (own * history.rounds + of_group * WARM_UP) / (history.rounds + WARM_UP)
        return np.where(np.isnan(history.base), of_group, np.maximum(of_group, mixed))
