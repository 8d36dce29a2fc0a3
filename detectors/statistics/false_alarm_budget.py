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

from laggard.detectors.statistics.estimates import Floats, bet_on_none, bet_on_one, count_of, onset_weight
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import RESTART, SELF, History
from laggard.detectors.statistics.shared_runs import SharedRuns

_RATE_FLOOR = 0.005  # a healthy device may exceed this often, however quiet it has been so far
_RATE_PRIOR = 1.0  # pseudo-count of exceedances that a rate starts with
_RATE_START = 0.02  # the rate before anything is learned
_AGAIN_START, _AGAIN_PRIOR = 0.01, 20.0  # the same for a second exceedance, and the pseudo-count of first ones
_OLDER_PRIOR = 8.0  # pseudo-count of rounds for which an older run is taken to be like a younger one
_LASTING_RUNS, _LASTING_SHARE = 5, 0.5  # at least so many runs, half of which went on: then noise lasts
_RATE_CEILING = 0.98  # what always exceeds would be no evidence, for good
# A device's own noise excuses it up to this rate, or twice its group's: one that exceeds far more often is slow.
_OWN_CEILING, _OWN_TIMES = 0.1, 2.0
_FAR_SHARE = 0.2  # of the bet on a device with noise of its own: for exceedances that are too large to be noise
_LONGEST_RUN = 255
_SHORTEST_INCIDENT = 4  # a longer run of a device that was reported is the incident, not its noise
_EVIDENCE_CAP = 100.0  # times the bar: more is not needed, and evidence must be able to fall after a recovery
_AGES = np.array([1, 2, 4, 8, 16])  # the youngest runs of each class
_SPANS = np.array([2, 4, 8, _LONGEST_RUN])  # how many ages each class after the first has


class Rates:
    """How often healthy devices exceed, learned from runs of exceedances that have ended.

    Each test, level and group has a rate of first exceedances, and of one more after a run of 1, 2 to 3, 4 to 7,
    8 to 15 or more rounds, because what disturbs a device lasts.  A run that has not ended may be a real slowdown, so
    it is not counted yet; nor is one that only one device of the group has had (:class:`SharedRuns`).
    """

    def __init__(self, sizes: NDArray[np.integer]) -> None:
        shape = (2, 2, len(sizes))
        self._shared = SharedRuns(sizes)
        self.rounds, self.runs, self.held = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.tries, self.repeats = np.zeros((len(_AGES), *shape)), np.zeros((len(_AGES), *shape))

    def first(self) -> Floats:
        """Return an upper estimate of the rate of first exceedances, ``(2, 2, n_groups)``."""
        return _bounded((_upper(self.runs, _RATE_PRIOR) + self.held) / (self.rounds + _RATE_PRIOR / _RATE_START))

    def again(self) -> Floats:
        """Return the rate of one more exceedance, by the run's age: an upper estimate that never falls with age."""
        youngest = _upper(self.repeats[0], _AGAIN_PRIOR * _AGAIN_START) / (self.tries[0] + _AGAIN_PRIOR)
        found = [_bounded(youngest)]
        for tries, repeats in zip(
            self.tries[1:], self.repeats[1:], strict=True
        ):  # as before, unless they say otherwise
            older = (repeats + _OLDER_PRIOR * found[-1]) / (tries + _OLDER_PRIOR)
            found.append(np.maximum(found[-1], _bounded(older)))
        return np.stack(found)

    def lasting(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how many runs ended, and their mean length, where they last longer than chance: else 0."""
        # For the slowdown that matters, against the own past, each `(n_groups,)`.
        runs, repeats = self.tries[0, SELF, RESTART], self.repeats[:, SELF, RESTART].sum(axis=0)
        rounds = self.rounds[SELF, RESTART]
        lasts = (runs >= _LASTING_RUNS) & (repeats > _LASTING_SHARE * runs) & (repeats * rounds > 4 * runs * runs)
        return np.where(lasts, runs, 0), 1 + repeats / np.maximum(runs, 1)

    def learn_window(
        self, exceeds: NDArray[np.bool_], level: int, counted: NDArray[np.bool_], grouping: Grouping
    ) -> NDArray[np.uint8]:
        """Learn from the rounds that made up the baselines, ``(n_rounds, n_devices)``, for the self test."""
        # Returns the length of each device's run that has not ended: it is not learned from yet.
        run = np.zeros(counted.shape, np.uint8)
        if not (exceeds & counted).any():
            self.rounds[SELF, level] += len(exceeds) * count_of(counted, grouping.groups)
            return run
        for now in exceeds & counted:
            self.rounds[SELF, level] += count_of(counted & (run == 0), grouping.groups)
            ended = np.flatnonzero(~now & (run > 0))
            self.learn_ended(SELF, level, grouping.codes[ended], ended, run[ended])
            run = np.where(now, run + np.uint8(1), np.uint8(0))
        return run

    def learn_ended(
        self, test: int, level: int, codes: NDArray[np.integer], rows: NDArray[np.intp], lengths: NDArray[np.integer]
    ) -> None:
        """Learn from runs of exceedances that have just ended: their groups, devices and lengths."""
        if not len(codes):
            return
        runs, tries, repeats = self.runs[test, level], self.tries[:, test, level], self.repeats[:, test, level]
        new, codes, lengths = self._shared.add(test, level, codes, rows, lengths)
        began = _tally(codes, runs)
        self.held[test, level] += _tally(new, runs) - began
        runs += began * self._shared.runs_for_each
        tries[0] += began
        went_on = lengths > 1  # most do not
        codes, lengths = codes[went_on], lengths[went_on].astype(np.intp)
        repeats[0] += _tally(codes, runs)
        for age, (youngest, span) in enumerate(zip(_AGES[1:].tolist(), _SPANS.tolist(), strict=True), 1):
            if len(codes):
                tries[age] += _tally(codes, runs, np.clip(lengths - youngest + 1, 0, span))
                repeats[age] += _tally(codes, runs, np.clip(lengths - youngest, 0, span))


def _upper(count: NDArray[np.float64], prior: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return an upper estimate of a count's mean: two standard deviations above it."""
    return np.asarray(count + 2 * np.sqrt(count) + prior)


def _tally(
    codes: NDArray[np.integer], like: NDArray[np.float64], weights: NDArray[np.intp] | None = None
) -> NDArray[np.float64]:
    return np.bincount(codes, weights, len(like)).astype(np.float64)


def _bounded(rate: NDArray[np.float64]) -> Floats:
    return np.clip(rate, _RATE_FLOOR, _RATE_CEILING).astype(np.float32)


def accumulate(
    history: History,
    exceeds: Sequence[Sequence[NDArray[np.bool_]]],
    far: Sequence[NDArray[np.bool_]],
    tested: Sequence[NDArray[np.bool_]],
    rates: Rates,
    grouping: Grouping,
    rounds_tested: NDArray[np.int64],
    budget: float,
) -> None:
    """Add one round's exceedances to the history and the rates."""
    places = len(tested) * np.count_nonzero(tested[0] | tested[1])
    if not places:
        return
    cap = np.float32(_EVIDENCE_CAP / budget)
    quiet = history.reported == 0
    first, again = rates.first(), rates.again()
    for test in np.flatnonzero(rounds_tested).tolist():
        share = np.float32(onset_weight(int(rounds_tested[test])) / places)
        is_tested, counted = tested[test], tested[test] & quiet
        for level, exceeding in enumerate(exceeds[test]):
            run, evidence = history.run[test, level], history.evidence[test, level]
            own, of_all = history.own_rates(test, level), first[test, level]
            rate = np.maximum(np.minimum(own, grouping.per_device(_excused(of_all))), grouping.per_device(of_all))
            # Few devices exceed now or did in the last round; these are computed separately.
            few = np.flatnonzero((exceeding | (run > 0)) & is_tested)
            codes = grouping.codes[few]
            now, before = exceeding[few], run[few]
            of_group = _rate_of_few(of_all[codes], again[:, test, level], before, codes)
            own_of_few = np.maximum(own[few], np.where(before > 0, history.own_repeats(test, level, few), 0))
            factor = _factors(now, far[test][few], of_group, np.minimum(own_of_few, _excused(of_group)))
            of_few = np.minimum((evidence[few] + share) * factor, cap)
            np.add(evidence, share, out=evidence, where=is_tested)
            np.multiply(evidence, bet_on_none(rate), out=evidence, where=is_tested)
            evidence[few] = of_few

            run[few] = np.where(now, before + (before < _LONGEST_RUN), 0)
            teaches = counted[few]
            rounds = rates.rounds[test, level]
            rounds += count_of(counted, grouping.groups) - _tally(codes[teaches & (before > 0)], rounds)
            ended = teaches & ~now
            rates.learn_ended(test, level, codes[ended], few[ended], before[ended])
            own = ~now & (teaches | (before < _SHORTEST_INCIDENT))
            history.note_ended(test, level, few[own], before[own])


def _rate_of_few(first: Floats, again: Floats, before: NDArray[np.uint8], codes: NDArray[np.integer]) -> Floats:
    """Return each device's group's rate: of a first exceedance, or of one more after a run of so many rounds."""
    age = np.searchsorted(_AGES, np.maximum(before, 1), side="right") - 1
    return np.asarray(np.where(before > 0, np.maximum(first, again[age, codes]), first), np.float32)


def _excused(of_group: Floats) -> Floats:
    """Return up to which rate a device's own noise excuses it, given its group's rate."""
    return np.asarray(np.clip(np.float32(_OWN_TIMES) * of_group, np.float32(_OWN_CEILING), np.float32(_RATE_CEILING)))


def _factors(now: NDArray[np.bool_], far: NDArray[np.bool_], of_group: Floats, own: Floats) -> Floats:
    """Return by how much each device's evidence is multiplied, given its group's rate and its own."""
    # If a device has noise of its own, its exceedances that are too large for noise are bet on apart, at its group's
    # rate.
    rate = np.maximum(of_group, own)
    on_one = np.where(far, _FAR_SHARE * bet_on_one(of_group), (1 - _FAR_SHARE) * bet_on_one(rate))
    return np.where(now, np.where(own > of_group, on_one, bet_on_one(rate)), bet_on_none(rate)).astype(np.float32)
