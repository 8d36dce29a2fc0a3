"""Excursions: the evidence against each device, in nats, from the round in which it begins to be slow.

An excursion is that of a CUSUM of a graded and capped likelihood ratio: of "slower by such a size" against "healthy".
There are three sizes, each four times the one before, and a mixture for a device that is slow in some of its rounds.
How large the excursions of healthy devices get is learned from those that ended by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.devices import Grouping
from laggard.detectors.statistics.history import AT_TIMES, CLOCKS, EXCURSION, WARM_UP, WHOLE, History
from laggard.detectors.statistics.readings import Flags, Floats

OUTLIERS = 0.01  # of the rounds may be anything, up to the smallest size; larger outliers are as much rarer
GROWTH = 4.1  # from one size to the next: half of the largest is more than 1.5 times
ERRORS = 8.0  # of the past: the smallest size is at least so many, so that half of it is no error of the past
SHARE = 1 / WARM_UP  # of its rounds in which a device is slow that is so at times: any from 0.07 to 0.3 finds as many
LARGE = 1  # its size
NOISES = 1.5  # the smallest size of a slowdown, in noises; noise that lasts for fewer rounds does not last
_SIZES = [0, 1, 2, LARGE]  # of the clocks
_LONGEST = 2  # slow rounds on end that count as many: what lasts is for the other clocks
_STANDARD_ERRORS = 3.0  # what is lost is counted from so many below the mean, the lower end of what is known
PRIOR = 20.0  # how many excursions that ended what is assumed beforehand is worth
LEAST_STEPS = 2.0  # an excursion of fewer is not counted: a single round may be anything
LINK = 0.75
_BEGINS = np.array([0, 1, 3, 7, 15, 31, 63], np.float32)[:, None]  # further steps: each class is twice as long
_ENDS = np.append(_BEGINS[1:], [[127]], axis=0)

Places = tuple[NDArray[np.intp], NDArray[np.integer]]  # of some excursions: the clocks, and their devices' groups


@dataclass(frozen=True, slots=True)
class Scale:
    """What a round's residuals are measured by; ``(n_clocks, n_devices)`` but for the variance and how it lasts."""

    variance: Floats
    lasts: Floats  # rounds that one independent reading is worth
    size: Floats  # the slowdowns looked for, in log seconds
    step: Floats  # what one round is worth at most, in nats

    @classmethod
    def of(cls, history: History, variance: Floats, lasts: Floats, usual: Floats, smallest: float) -> Scale:
        """Return the sizes: what matters, and what noise and a badly learned past cannot be taken for.

        ``usual`` is the share of slow rounds of a typical device of the group.
        """
        errors = ERRORS * np.sqrt(np.minimum(1, lasts / np.clip(history.rounds, 1, WHOLE)))  # no more than the noise
        errors = np.where(np.isnan(history.base), np.float32(0), errors)
        least = np.fmax(np.float32(smallest), np.sqrt(variance) * np.maximum(np.float32(NOISES), errors))
        powers = GROWTH ** np.arange(AT_TIMES, dtype=np.float32)[:, None]
        size = np.maximum(least, np.float32(smallest) * powers)[_SIZES]
        worth = size * size / variance
        step = np.minimum(np.log(powers / np.float32(OUTLIERS))[_SIZES], worth)
        step[AT_TIMES] = np.minimum(-np.log(np.maximum(usual, np.float32(OUTLIERS))), worth[AT_TIMES])
        return cls(variance, lasts, size, step)


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

    def number(self, at: Places) -> NDArray[np.uint32]:
        """Return the numbers of excursions that count from now on; those of one round have that of the last of them."""
        np.add.at(self.counted, at, 1)
        return np.asarray(self.counted[at], np.uint32)

    def learn(self, at: Places, peaks: Floats, step: Floats) -> None:
        """Learn from excursions that have just ended, given their highest evidence and what one round is worth."""
        further = np.maximum(np.floor(peaks / step + 1e-3) - LEAST_STEPS, 0)
        went_on = np.clip(further - _BEGINS, 0, _ENDS - _BEGINS)
        ended = (further >= _BEGINS) & (further < _ENDS)
        for counts, more in ((self.went_on, went_on), (self.tries, went_on + ended)):
            for of_class, added in zip(counts, more, strict=True):
                np.add.at(of_class, at, added)

    def surprise(self, at: Places, evidence: Floats, step: Floats, *, is_steady: bool = False) -> Floats:
        """Return how little is to be expected of healthy devices that an excursion gets so large, in nats."""
        further = np.maximum(evidence / step - LEAST_STEPS, 0)
        steps = np.clip(further - _BEGINS, 0, _ENDS - _BEGINS)
        went_on, tries = self.went_on[:, *at], self.tries[:, *at]
        if is_steady:  # as if the chance to go on were the same at all lengths, which is the stricter
            steps, went_on, tries = further[None], went_on.sum(axis=0)[None], tries.sum(axis=0)[None]
        outlier = goes_on = np.exp(-step)
        nats = np.zeros(len(step))
        for number in range(len(steps)):  # what is known of shorter ones says half of what is to be expected
            expected = outlier ** (1 - LINK) * goes_on**LINK
            goes_on = (PRIOR * expected + went_on[number]) / (PRIOR + tries[number])
            nats += steps[number] * np.minimum(step, -np.log(goes_on))
        return np.asarray(nats, np.float32)


@dataclass(frozen=True, slots=True)
class Slowness:
    """How slow a device is by the largest size that was found, as ratios of times.

    A restart would put a typical device in its place.  So nothing is lost by what a device is slower than its own past,
    but not than its typical peer: it may have been idle or cold when its past was learned.
    """

    clock: int
    shown: float  # against its past, or against its peers if it has not become slower
    slowdown: float  # against both
    least: float  # three standard errors less
    own_past: bool  # whether it has become slower than it was
    rounds: float
    share: float  # of them in which it was slow


def advance(history: History, residual: Floats, before: Floats, scale: Scale, budget: float) -> Flags:
    """Add a round's residuals, ``NaN`` where there is none, to the evidence; return which excursions are over.

    ``before``: the residuals of the round before.
    """
    lasts, present = scale.lasts, ~(np.isnan(residual) | np.isnan(scale.variance))
    ratio = _ratio(residual, scale.size, scale.variance, present)
    is_slow = ratio[LARGE] > 0
    np.copyto(history.run, np.where(is_slow, history.run + (history.run <= _LONGEST), 0), where=present)
    seen = np.clip(history.rounds + history.n_held, WARM_UP, WHOLE)
    history.often += np.where(present, (is_slow - history.often) / seen, 0)
    capped = np.clip(ratio, -scale.step, scale.step)
    mixed = np.log(np.float32(1 - SHARE) + np.float32(SHARE) * np.exp(capped[AT_TIMES]))  # slow in some rounds
    capped[AT_TIMES] = np.where(present & (history.run <= _LONGEST), mixed / lasts, 0)
    # AR(1) noise has independent innovations: a step is seen in that of its first round, and a little in the others.
    kept = (lasts - 1) / (lasts + 1)
    begins = later = ratio
    if kept.any():
        innovation, variance = residual - kept * before, scale.variance * (1 - kept**2)
        begins, later = (_ratio(innovation, scale.size * part, variance, present) for part in (1, 1 - kept))
    np.maximum(history.of_noise + later, np.where(present, begins, history.of_noise), out=history.of_noise)
    np.maximum(history.evidence + capped, 0, out=history.evidence)
    goes_on = history.evidence > 0
    history.lasts += present
    for array in (history.lasts, history.of_noise):
        array *= goes_on
    evidence = height(history)
    # One that was found is over once it has fallen by as much as it takes to find the first one.
    enough = LEAST_STEPS * scale.step + np.float32(np.log(2 * CLOCKS / budget))
    over = ~goes_on | (history.found & (history.peak - evidence >= enough))
    np.maximum(history.peak, evidence, out=history.peak)
    return over


def _ratio(residual: Floats, size: Floats, variance: Floats, present: Flags) -> Floats:
    """Return the log likelihood ratio of "slower by this size"; zero where there is no reading."""
    worth = size * size / variance
    ratio = np.clip(size * (residual - size / 2) / variance, -worth, worth)
    np.copyto(ratio, 0, where=~present)
    return np.asarray(ratio)


def height(history: History) -> Floats:
    """Return the evidence of each excursion: the lesser of that by outliers, and that by noise, which may last."""
    found = np.minimum(history.evidence, history.of_noise)
    found[AT_TIMES] = history.evidence[AT_TIMES]
    return found


def settle(history: History, over: Flags, scale: Scale, tails: Tails, grouping: Grouping, budget: float) -> None:
    """Count the excursions that have become large enough; note those that healthy devices hardly ever have."""
    ended = np.nonzero(over & (history.number > 0))
    tails.learn((ended[0], grouping.codes[ended[1]]), history.peak[ended], scale.step[ended])
    history.clear(over, EXCURSION)
    evidence, bar = height(history), -np.log(budget)
    large = np.nonzero(evidence >= np.float32(0.999 * LEAST_STEPS) * scale.step)
    clocks, rows = large
    at, new = (clocks, grouping.codes[rows]), history.number[large] == 0
    history.number[clocks[new], rows[new]] = tails.number((at[0][new], at[1][new]))
    number = history.number[large].astype(np.float64)
    share = np.log(grouping.n_groups * CLOCKS * number * (number + 1))  # of the budget, in nats: they sum to one
    steps = scale.step[large]
    history.odds[large] = tails.surprise(at, evidence[large], steps) - share
    history.usual[large] = tails.surprise(at, history.peak[large], steps, is_steady=True) - share < bar
    history.found |= (history.number > 0) & (history.odds >= bar)


def note_slowness(history: History, own: Floats, by_peers: Floats, scale: Scale) -> None:
    """Add a round to the sums of how slow the devices in an excursion are."""
    counts = history.evidence > 0
    counts[AT_TIMES] &= history.run > 0
    # A reading counts up to the next size: a single one may be anything.
    most = np.stack([*scale.size[1:AT_TIMES], np.full(own.shape, np.inf, np.float32), scale.size[LARGE + 1]])
    for sums, counted, excess in zip(history.slower, history.counted, (own, by_peers), strict=True):
        known = counts & ~np.isnan(excess)
        counted += known
        sums += np.where(known, np.minimum(excess, most), 0)


def slowness_at(
    row: int, history: History, variance: np.float32, lasts: float, smallest: float, which: Flags
) -> Slowness:
    """Return how slow a device is by some of its excursions."""
    clocks = np.flatnonzero(which)
    at_times = clocks[0] == AT_TIMES
    clock = AT_TIMES if at_times else int(clocks[clocks < AT_TIMES][-1])
    rounds = max(1.0, float(history.lasts[clock, row]))
    counted = history.counted[:, clock, row]
    with_past, hits = float(counted[0]), max(1.0, float(counted.max()))
    own, by_peers = (history.slower[:, clock, row] / np.maximum(counted, 1)).tolist()
    own_past = with_past > 0 and own >= smallest / 2
    slower = min(own, by_peers) if own_past else by_peers
    past = lasts / min(max(float(history.rounds[row]), 1.0), WHOLE) if own_past else 0.0
    error = np.sqrt(variance * (1 / (1 + (hits - 1) / lasts) + past))
    values = own if own_past else by_peers, slower, slower - _STANDARD_ERRORS * error
    shown, slowdown, least = np.exp(values).tolist()
    return Slowness(clock, shown, slowdown, least, own_past, rounds, hits / rounds)
