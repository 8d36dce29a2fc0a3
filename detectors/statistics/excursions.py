"""Excursions: the evidence against each device, in nats, from the round in which it begins to be slow.

An excursion is that of a CUSUM of a graded and capped likelihood ratio: of "slower by such a size" against "healthy".
There are three sizes, each four times the one before, and a mixture for a device that is slow in some of its rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics import noise
from laggard.detectors.statistics.estimates import Floats
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import AT_TIMES, CLOCKS, WARM_UP, WHOLE, History
from laggard.detectors.statistics.tails import LEAST_STEPS, Tails

OUTLIERS = 0.01  # of the rounds may be anything, up to the smallest size; larger outliers are as much rarer
GROWTH = 4.0  # from one size to the next
ERRORS = 8.0  # of the past: the smallest size is at least so many, so that half of it is no error of the past
SHARE = 1 / WARM_UP  # of its rounds in which a device is slow that is so at times: any from 0.07 to 0.3 finds as many
LARGE = 1  # its size
_SIZES = [0, 1, 2, LARGE]  # of the clocks
_LONGEST = 2  # slow rounds on end that count as many: what lasts is for the other clocks


@dataclass(frozen=True, slots=True)
class Scale:
    """What a round's residuals are measured by; ``(n_clocks, n_devices)`` but for the variance."""

    variance: Floats
    size: Floats  # the slowdowns looked for, in log seconds
    step: Floats  # what one round is worth at most, in nats


def scale_of(history: History, variance: Floats, lasts: Floats, usual: Floats, smallest: float) -> Scale:
    """Return the sizes: what matters, and what noise and a badly learned past cannot be taken for.

    ``usual`` is the share of slow rounds of a typical device of the group.
    """
    errors = ERRORS * np.sqrt(lasts / np.clip(history.rounds, 1, WHOLE))
    errors = np.where(np.isnan(history.base), np.float32(0), errors)
    least = np.fmax(np.float32(smallest), np.sqrt(variance) * np.maximum(np.float32(noise.NOISES), errors))
    powers = GROWTH ** np.arange(AT_TIMES, dtype=np.float32)[:, None]
    size = np.maximum(least, np.float32(smallest) * powers)[_SIZES]
    worth = size * size / variance
    step = np.minimum(np.log(powers / np.float32(OUTLIERS))[_SIZES], worth)
    step[AT_TIMES] = np.minimum(-np.log(np.maximum(usual, np.float32(OUTLIERS))), worth[AT_TIMES])
    return Scale(variance, size, step)


def _ratio(residual: Floats, size: Floats, variance: Floats, present: NDArray[np.bool_]) -> Floats:
    """Return the log likelihood ratio of "slower by this size"; zero where there is no reading."""
    worth = size * size / variance
    ratio = np.clip(size * (residual - size / 2) / variance, -worth, worth)
    np.copyto(ratio, 0, where=~present)
    return np.asarray(ratio)


def _mixed(ratio: Floats) -> Floats:
    """Return the log likelihood ratio of "slow in some rounds", given that of "slow"."""
    return np.asarray(np.log(np.float32(1 - SHARE) + np.float32(SHARE) * np.exp(ratio)))


def advance(
    history: History, residual: Floats, before: Floats, lasts: Floats, scale: Scale, budget: float
) -> NDArray[np.bool_]:
    """Add a round's residuals, ``NaN`` where there is none, to the evidence; return which excursions are over.

    ``before``: the residuals of the round before.
    """
    present = ~(np.isnan(residual) | np.isnan(scale.variance))
    ratio = _ratio(residual, scale.size, scale.variance, present)
    _note_hits(history, ratio[LARGE] > 0, present)
    capped = np.clip(ratio, -scale.step, scale.step)
    counts = present & (history.run <= _LONGEST)
    capped[AT_TIMES] = np.where(counts, _mixed(capped[AT_TIMES]) / lasts, 0)
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


def _note_hits(history: History, is_slow: NDArray[np.bool_], present: NDArray[np.bool_]) -> None:
    """Note who is slow in this round, for how many on end, and how often."""
    run = np.where(is_slow, history.run + (history.run < _LONGEST + 1), 0).astype(np.uint8)
    np.copyto(history.run, run, where=present)
    seen = np.clip(history.rounds + history.n_held, WARM_UP, WHOLE)
    history.often += np.where(present, (is_slow - history.often) / seen, 0)


def height(history: History) -> Floats:
    """Return the evidence of each excursion: the lesser of that by outliers, and that by noise, which may last."""
    found = np.minimum(history.evidence, history.of_noise)
    found[AT_TIMES] = history.evidence[AT_TIMES]
    return found


def settle(
    history: History, over: NDArray[np.bool_], scale: Scale, tails: Tails, grouping: Grouping, budget: float
) -> None:
    """Count the excursions that have become large enough; note those that healthy devices hardly ever have."""
    ended = np.nonzero(over & (history.number > 0))
    tails.learn(ended[0], grouping.codes[ended[1]], history.peak[ended], scale.step[ended])
    history.end(over)
    evidence = height(history)
    large = np.nonzero(evidence >= np.float32(0.999 * LEAST_STEPS) * scale.step)
    codes = grouping.codes[large[1]]
    new = history.number[large] == 0
    history.number[large[0][new], large[1][new]] = tails.number(large[0][new], codes[new])
    number = history.number[large].astype(np.float64)
    share = np.log(len(grouping) * CLOCKS * number * (number + 1))  # of the budget, in nats: they sum to one
    steps = scale.step[large]
    history.odds[large] = tails.surprise(large[0], codes, evidence[large], steps) - share
    usual = tails.surprise_if_steady(large[0], codes, history.peak[large], steps) - share < -np.log(budget)
    history.usual[large] = usual
    history.found |= (history.number > 0) & (history.odds >= -np.log(budget))
