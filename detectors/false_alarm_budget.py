"""False-alarm budget: turns exceedances into sequential evidence whose chance of a false alarm is bounded per run.

A device's evidence is a weighted sum, over the rounds in which a slowdown may have begun, of products of bets. It obeys
``evidence = (evidence + weight) * factor``, where the mean of a healthy device's factor, given the past, is at most 1.
The evidence of all healthy devices together, plus the weights not yet spent, is a non-negative supermartingale that
starts at 1 or less. By Ville's inequality the probability that it ever reaches ``1 / budget`` is at most ``budget``,
however long the run is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.grouping import Grouping
from laggard.detectors.history import SELF, WARM_UP, History
from laggard.detectors.statistics import Floats, bet_on_none, bet_on_one, count_of, onset_weight

__all__ = ["Rates", "accumulate"]

_RATE_FLOOR = 0.005  # a healthy device may exceed this often, however quiet it has been so far
_RATE_PRIOR = 1.0  # pseudo-count of exceedances that a rate starts with
_RATE_START = 0.02  # the rate before anything is learned
_AGAIN_START, _AGAIN_PRIOR = 0.01, 20.0  # the same for repeated exceedances, and the pseudo-count of exceedances
_RATE_CEILING = 0.98
_LONGEST_RUN = 255
_EVIDENCE_CAP = 100.0  # times the bar: more is not needed, and evidence must be able to fall after a recovery


class Rates:
    """How often healthy devices exceed, learned from runs of exceedances that have ended.

    Each test, level, probe and group has two rates: of a first exceedance, and of one right after another, because
    consecutive rounds share their noise.  A run that has not ended may be a real slowdown, so it is not counted yet.
    """

    def __init__(self, probes: int, groups: int) -> None:
        self.rounds = np.zeros((2, 2, probes, groups))
        self.runs = np.zeros((2, 2, probes, groups))
        self.exceedances = np.zeros((2, 2, probes, groups))

    def first(self) -> Floats:
        """Return an upper estimate of the rate of first exceedances, ``(2, 2, n_probes, n_groups)``."""
        count = self.runs + 2 * np.sqrt(self.runs) + _RATE_PRIOR
        return _bounded(count / (self.rounds + _RATE_PRIOR / _RATE_START))

    def again(self) -> Floats:
        """Return an upper estimate of the rate of repeated exceedances, ``(2, 2, n_probes, n_groups)``."""
        repeats = self.exceedances - self.runs
        count = repeats + 2 * np.sqrt(repeats) + _AGAIN_PRIOR * _AGAIN_START
        return _bounded(count / (self.exceedances + _AGAIN_PRIOR))

    def learn_window(
        self, exceeds: NDArray[np.bool_], level: int, counted: NDArray[np.bool_], grouping: Grouping
    ) -> NDArray[np.uint8]:
        """Learn from the rounds that made up the baselines, ``(n_rounds, n_probes, n_devices)``, for the self test.

        Returns the length of each device's run that has not ended: it is not learned from yet.
        """
        self.rounds[SELF, level] += len(exceeds) * count_of(counted, grouping.groups)
        lengths = np.zeros(counted.shape, np.uint8)
        few = np.flatnonzero(exceeds.any(axis=0) & counted)
        flags = exceeds.reshape(len(exceeds), -1)[:, few]
        not_ended = np.logical_and.accumulate(flags[::-1])[::-1]
        lengths.put(few, np.count_nonzero(not_ended, axis=0))
        ended = flags & ~not_ended
        begins = ended & ~np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])
        probe, device = np.divmod(few, counted.shape[1])
        codes = probe * len(grouping) + grouping.codes[device]
        runs, exceedances = self.runs[SELF, level], self.exceedances[SELF, level]
        for total, flagged in ((runs, begins), (exceedances, ended)):
            total += np.bincount(codes, np.count_nonzero(flagged, axis=0), total.size).reshape(total.shape)
        return lengths

    def learn_ended(self, test: int, level: int, codes: NDArray[np.intp], lengths: NDArray[np.uint8]) -> None:
        """Learn from runs of exceedances that have just ended, given their probe and group, and their lengths."""
        runs, exceedances = self.runs[test, level], self.exceedances[test, level]
        runs += np.bincount(codes, minlength=runs.size).reshape(runs.shape)
        exceedances += np.bincount(codes, lengths, runs.size).reshape(runs.shape)


def _bounded(rate: NDArray[np.float64]) -> Floats:
    return np.clip(rate, _RATE_FLOOR, _RATE_CEILING).astype(np.float32)


def accumulate(
    history: History,
    exceeds: Sequence[Sequence[NDArray[np.bool_]]],
    tested: Sequence[NDArray[np.bool_]],
    rates: Rates,
    grouping: Grouping,
    rounds_tested: NDArray[np.int64],
    budget: float,
) -> None:
    """Add one round's exceedances to the history and the rates.

    Parameters
    ----------
    exceeds
        By test and level, each ``(n_probes, n_devices)``.
    tested
        By test; a device that is not tested keeps its evidence.
    rounds_tested
        By test: the number of rounds of the run, including this one, in which it was possible. Rounds before that
        spend no budget.
    budget
        The false-alarm budget of the whole run.
    """
    present = int(np.count_nonzero((tested[0] | tested[1]).any(axis=0)))
    places = len(tested) * len(history.baseline) * max(1, present)
    cap, ceiling = np.float32(_EVIDENCE_CAP / budget), np.float32(_RATE_CEILING)
    quiet = history.reported == 0
    first, again = rates.first(), rates.again()
    per_round = 1 / (history.seen + np.float32(WARM_UP))
    for test in np.flatnonzero(rounds_tested).tolist():
        share = np.float32(onset_weight(int(rounds_tested[test])) / places)
        is_tested, counted = tested[test], tested[test] & quiet
        rates.rounds[test] += count_of(counted, grouping.groups)
        for level, exceeding in enumerate(exceeds[test]):
            run, runs, evidence = (array[test, level] for array in (history.run, history.runs, history.evidence))
            own = runs * per_round if runs.any() else np.float32(0)
            rate = np.minimum(np.maximum(own, grouping.per_device(first[test, level])), ceiling)
            # Few devices exceed now or did in the last round; these are computed separately.
            few = np.flatnonzero((exceeding | (run > 0)) & is_tested)
            probe, device = np.divmod(few, len(quiet))
            codes = probe * len(grouping) + grouping.codes[device]
            now, before = exceeding.take(few), run.take(few)
            rate_of_few = np.maximum(runs.take(few) * per_round.take(few), first[test, level].take(codes))
            np.maximum(rate_of_few, again[test, level].take(codes), out=rate_of_few, where=before > 0)
            rate_of_few = np.minimum(rate_of_few, ceiling)
            factor = np.where(now, bet_on_one(rate_of_few), bet_on_none(rate_of_few))
            of_few = np.minimum((evidence.take(few) + share) * factor, cap)
            np.add(evidence, share, out=evidence, where=is_tested)
            np.multiply(evidence, bet_on_none(rate), out=evidence, where=is_tested)
            evidence.put(few, of_few)

            run.put(few, np.where(now, before + (before < _LONGEST_RUN), 0))
            ended = ~now & counted.take(few)
            rates.learn_ended(test, level, codes[ended], before[ended])
            runs.put(few[ended], runs.take(few[ended]) + 1)
