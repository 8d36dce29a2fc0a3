"""Intermittent slowness: evidence against a device that exceeds again and again, though most of its rounds are good.

A run of exceedances multiplies the evidence once, and a little more for its second and third round; a good round
divides it by little.  The bets are fair or worse as long as a healthy device begins a run no more often than twice its
group's typical device does, or in 1 % of its rounds, and goes on in a quarter of the cases.  What a device does itself
raises its group's typical rate hardly at all, so its noise does not excuse it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.estimates import Floats, high_median, onset_weight
from laggard.detectors.statistics.history import RESTART, SELF

if TYPE_CHECKING:
    from laggard.detectors.statistics.grouping import Grouping
    from laggard.detectors.statistics.history import History


_RATE_FLOOR, _TYPICAL_RATES = 0.01, 2.0  # a healthy device exceeds as often, or so many times as often as is typical
_RATE_CEILING = 0.5  # of a group in which half of the rounds exceed, nothing can be told
_FAULTY_RATES = 6.0  # times as often as a healthy one
_AGAIN, _FAULTY_AGAIN = 0.25, 0.5  # in a quiet group, how often an exceedance follows another
_LONGEST_BET = 3  # rounds of a run: what lasts longer is for the other tests
_EVIDENCE_CAP = 100.0  # times the bar, as in the budget


def typical_rate(history: History, grouping: Grouping) -> Floats:
    """Return how often a healthy device may exceed its own past, ``(n_groups,)``."""
    typical = np.zeros(len(grouping), np.float32)
    if history.exceedances[SELF, RESTART].any():
        typical = np.nan_to_num(high_median(history.density(), grouping.samples))
    return np.asarray(np.clip(_TYPICAL_RATES * typical, _RATE_FLOOR, _RATE_CEILING), np.float32)


def accumulate_intermittent(
    history: History,
    exceeds: NDArray[np.bool_],
    tested: NDArray[np.bool_],
    grouping: Grouping,
    rounds_tested: int,
    budget: float,
) -> None:
    """Add one round of the test against the own past, ``(n_devices,)``, before the runs are updated."""
    places = np.count_nonzero(tested)
    if not places:
        return
    healthy = typical_rate(history, grouping)
    faulty = np.minimum(_FAULTY_RATES * healthy, (1 + healthy) / 2)
    before, evidence = history.run[SELF, RESTART], history.intermittent
    share = np.float32(onset_weight(rounds_tested) / places)
    np.add(evidence, share, out=evidence, where=tested)
    np.multiply(evidence, grouping.per_device((1 - faulty) / (1 - healthy)), out=evidence, where=tested & (before == 0))
    few = np.flatnonzero((exceeds | (before > 0)) & tested)
    if len(few):
        code = grouping.codes[few]
        good, bad, now, run = healthy[code], faulty[code], exceeds[few], before[few]
        begins = bad / good * (1 - good) / (1 - bad)  # instead of what a good round divides by
        goes_on = np.where(now, _FAULTY_AGAIN / _AGAIN, (1 - _FAULTY_AGAIN) / (1 - _AGAIN))
        goes_on = np.where((run < _LONGEST_BET) & (good <= np.float32(_RATE_FLOOR)), goes_on, 1)
        factor = np.where(run == 0, begins, goes_on)
        cap = _EVIDENCE_CAP / budget
        evidence[few] = np.clip(evidence[few] * factor, -cap, cap)
