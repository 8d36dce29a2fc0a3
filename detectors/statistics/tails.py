"""How large the excursions of healthy devices get, learned from those that ended by themselves. Reads no clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.estimates import Floats
from laggard.detectors.statistics.history import CLOCKS

PRIOR = 20.0  # how many excursions that ended what is assumed beforehand is worth
LEAST_STEPS = 2.0  # an excursion of fewer is not counted: a single round may be anything
LINK = 0.75
_BEGINS = np.array([0, 1, 3, 7, 15, 31, 63], np.float32)[:, None]  # further steps: each class is twice as long
_ENDS = np.append(_BEGINS[1:], [[127]], axis=0)


@dataclass
class Tails(Arrays):
    """The tail of healthy excursions, by clock and group: the chance that one goes on for one more step.

    A step is what one round is worth at most.  Before anything is known that chance is taken to be that of an outlier,
    so each step is worth what it says.  Every excursion that ended teaches: it went on so many times, and once it did
    not.  A fault that never ends teaches nothing.  The chance is learned apart for lengths of 1, 2, 4, 8, ... further
    steps: a phase of thirty rounds goes on for sure until it ends, and says nothing of what is longer still.
    """

    went_on: NDArray[np.float64] = of(0, len(_BEGINS), CLOCKS, dtype=np.float64)
    tries: NDArray[np.float64] = of(0, len(_BEGINS), CLOCKS, dtype=np.float64)
    counted: NDArray[np.float64] = of(0, CLOCKS, dtype=np.float64)  # excursions so far

    def number(self, clocks: NDArray[np.intp], codes: NDArray[np.integer]) -> NDArray[np.uint32]:
        """Return the numbers of excursions that count from now on, given their clocks and groups."""
        place = clocks * self.counted.shape[1] + codes
        order = np.argsort(place, kind="stable")
        _, begins, sizes = np.unique(place[order], return_index=True, return_counts=True)
        rank = np.empty(len(place), np.intp)
        rank[order] = np.arange(len(place)) - np.repeat(begins, sizes)
        found = self.counted[clocks, codes] + 1 + rank
        np.add.at(self.counted, (clocks, codes), 1)
        return np.asarray(found, np.uint32)

    def learn(self, clocks: NDArray[np.intp], codes: NDArray[np.integer], peaks: Floats, step: Floats) -> None:
        """Learn from excursions that have just ended, given their highest evidence and what one round is worth."""
        further = np.maximum(np.floor(peaks / step + 1e-3) - LEAST_STEPS, 0)
        went_on = np.clip(further - _BEGINS, 0, _ENDS - _BEGINS)
        ended = (further >= _BEGINS) & (further < _ENDS)
        for counts, more in ((self.went_on, went_on), (self.tries, went_on + ended)):
            for of_class, added in zip(counts, more, strict=True):
                np.add.at(of_class, (clocks, codes), added)

    def surprise(self, clocks: NDArray[np.intp], codes: NDArray[np.integer], evidence: Floats, step: Floats) -> Floats:
        """Return how little is to be expected of healthy devices that an excursion gets so large, in nats."""
        went_on, tries = self.went_on[:, clocks, codes], self.tries[:, clocks, codes]
        outlier = goes_on = np.exp(-step)
        of_step = np.empty(went_on.shape)
        for number in range(len(_BEGINS)):  # what is known of shorter ones says half of what is to be expected
            expected = outlier ** (1 - LINK) * goes_on**LINK
            goes_on = (PRIOR * expected + went_on[number]) / (PRIOR + tries[number])
            of_step[number] = np.minimum(step, -np.log(goes_on))
        further = np.maximum(evidence / step - LEAST_STEPS, 0)
        return np.asarray((of_step * np.clip(further - _BEGINS, 0, _ENDS - _BEGINS)).sum(axis=0), np.float32)

    def surprise_if_steady(
        self, clocks: NDArray[np.intp], codes: NDArray[np.integer], evidence: Floats, step: Floats
    ) -> Floats:
        """Return the same if the chance to go on is the same at all lengths: it is the stricter."""
        went_on, tries = (counts[:, clocks, codes].sum(axis=0) for counts in (self.went_on, self.tries))
        goes_on = (PRIOR * np.exp(-step) + went_on) / (PRIOR + tries)
        return np.asarray(np.maximum(evidence / step - LEAST_STEPS, 0) * np.minimum(step, -np.log(goes_on)))
