"""Sequential evidence: each device's exceedances, weighed so that a healthy run stays under its false-alarm budget.

The evidence of a device is a weighted sum, over the rounds in which a slowdown may have begun, of products of bets.
It obeys ``evidence = (evidence + weight) * factor``, where a healthy device's factor has mean at most 1 given the past.
The evidence of all healthy devices together, plus the weights not yet spent, is a non-negative supermartingale that
starts at 1 or less: by Ville's inequality the chance that it ever reaches ``1 / budget`` is at most ``budget``, however
long the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.history import History
from detectors.statistics import Floats, bet, onset_weight

__all__ = ["Rates", "accumulate"]

_RATE_FLOOR = 0.005  # a healthy device may exceed this often before anything is learned
_RATE_PRIOR = 0.5  # pseudo-count of exceedances with which a rate starts at its floor
_AGAIN_PRIOR = 20.0  # pseudo-count of exceedances before "again" is learned
_RATE_CEILING = 0.98
_EVIDENCE_CAP = 100.0  # times the bar: evidence above is not needed, and must be able to fall after a recovery


class Rates:
    """How often healthy devices exceed, learned from runs of exceedances that ended by themselves.

    Two rates per group, probe, test and level: of a first exceedance, and of one right after another (neighbours in
    time share their noise).  A run that has not ended may be a true slowdown, and teaches nothing yet.
    """

    def __init__(self, groups: int, probes: int) -> None:
        self.rounds = np.zeros((groups, probes, 2, 2))
        self.runs = np.zeros((groups, probes, 2, 2))
        self.exceedances = np.zeros((groups, probes, 2, 2))

    def first(self) -> Floats:
        """Return an upper estimate of the chance to exceed after a round without, ``(n_groups, n_probes, 2, 2)``."""
        count = self.runs + 2 * np.sqrt(self.runs) + _RATE_PRIOR
        return _bounded(count / (self.rounds + _RATE_PRIOR / _RATE_FLOOR))

    def again(self) -> Floats:
        """Return an upper estimate of the chance to exceed once more, ``(n_groups, n_probes, 2, 2)``."""
        repeats = self.exceedances - self.runs
        count = repeats + 2 * np.sqrt(repeats) + _AGAIN_PRIOR * _RATE_FLOOR
        return _bounded(count / (self.exceedances + _AGAIN_PRIOR))

    def learn(
        self, ended: NDArray[np.uint8], counted: NDArray[np.bool_], groups: Sequence[NDArray[np.intp] | slice]
    ) -> None:
        """Count one round: the lengths of the runs that ended in it (else 0), and which readings count."""
        for number, rows in enumerate(groups):
            self.rounds[number] += np.count_nonzero(counted[rows], axis=0)[:, None, None]
            if ended[rows].any():
                self.runs[number] += np.count_nonzero(ended[rows], axis=0)
                self.exceedances[number] += ended[rows].sum(axis=0)


def _bounded(rate: NDArray[np.float64]) -> Floats:
    return np.clip(rate, _RATE_FLOOR, _RATE_CEILING).astype(np.float32)


def accumulate(
    history: History,
    exceeds: NDArray[np.bool_],
    tested: NDArray[np.bool_],
    rates: Rates,
    groups: Sequence[NDArray[np.intp] | slice],
    round_number: int,
    budget: float,
) -> None:
    """Put one round's exceedances into the history.

    Parameters
    ----------
    exceeds, tested
        Shape ``(n_devices, n_probes, test, level)`` and ``(n_devices, n_probes, test, 1)``; what is not tested keeps
        its evidence.
    round_number
        Of the run, from 1.
    budget
        Of the whole run.
    """
    present = tested.any(axis=(1, 2, 3))
    share = onset_weight(round_number) / (2 * tested.shape[1] * max(1, np.count_nonzero(present)))
    first, again = rates.first(), rates.again()
    own = (history.runs + np.float32(_RATE_PRIOR)) / (
        history.seen[:, :, None, None] + np.float32(_RATE_PRIOR / _RATE_FLOOR)
    )
    factor = np.empty(exceeds.shape, np.float32)
    for number, rows in enumerate(groups):
        rate = np.where(history.run[rows] > 0, again[number], np.maximum(first[number], own[rows]))
        factor[rows] = bet(exceeds[rows], np.minimum(rate, np.float32(_RATE_CEILING)))
    grown = np.minimum((history.evidence + np.float32(share)) * factor, np.float32(_EVIDENCE_CAP / budget))
    history.evidence = np.where(tested, grown, history.evidence)

    quiet = (history.told == 0)[:, None, None, None]
    ended = np.where(tested & ~exceeds & quiet, history.run, 0).astype(np.uint8)
    rates.learn(ended, tested[:, :, 1, 0] & quiet[:, :, 0, 0], groups)
    history.runs += ended > 0
    longer = np.where(exceeds, np.minimum(history.run, 254) + 1, 0).astype(np.uint8)
    history.run = np.where(tested, longer, history.run)
