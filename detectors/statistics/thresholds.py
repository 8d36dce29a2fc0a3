"""How slow is slow: the effects that the tests look for, and the limits that a reading may exceed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.readings import Floats
from laggard.settings import number

GPU_MIN_SLOWDOWN = 1.05  # what chips of one model usually differ by: docs/detection.md
# On a virtual device the probe queues behind the program's own kernels, so its readings depend on their size.
VIRTUAL_MIN_SLOWDOWN = 1.5

# Of a job's false-alarm budget: what its probes, its sections and its links may spend.
PROBES_SHARE, SECTIONS_SHARE, LINKS_SHARE = 0.8, 0.1, 0.1
VERY_SLOW = 1.33  # from this slowdown on, a verdict's severity is `very slow`
REPORT, RESTART = 0, 1  # the two levels of what one cross-section finds
MAJORITY = 0.45  # if this share of a group looks slow at once, the peers cannot tell which devices are slow
_SILICON_SUSPECT = 1.05  # a chip this much slower than its peers is still within normal variation
_SILICON_SLOW = 1.07  # four standard deviations of the V100s of the benchmark
_PEER_SPREADS = 3.5  # standard deviations between chips
_PAIR_RATIO = 2.0  # of two devices, only a slowdown by this factor shows which one is slow


def checked_budget(false_alarm_budget: float) -> float:
    """Return a budget if it is a probability."""
    if not 0 < number(false_alarm_budget) < 1:
        raise ValueError(f"false_alarm_budget must be a probability between 0 and 1, got {false_alarm_budget!r}")
    return false_alarm_budget


def checked_slowdown(min_slowdown: float) -> float:
    """Return the smallest slowdown that matters, if it is one, as a ratio of times."""
    if not number(min_slowdown) > 1:
        raise ValueError(f"min_slowdown must be a ratio above 1 (1.05 is 5 % slower), got {min_slowdown!r}")
    return min_slowdown


def against_peers(smallest: float, spread: Floats, peers: NDArray[np.intp]) -> list[Floats]:
    """Return by how much a healthy device may be slower than its peers, by level; all in log seconds."""
    # The median of few chips is uncertain, too: that of n has pi / 2n of the variance of one.
    few = np.sqrt(1 + np.pi / 2 / np.maximum(peers - 1, 1)).astype(np.float32)
    found = []
    for share, ratio in ((0.5, _SILICON_SUSPECT), (1, _SILICON_SLOW)):
        level = np.float32(max(share * smallest, np.log(ratio)))
        pair = np.float32(max(2 * level, np.log(_PAIR_RATIO)))
        found.append(np.where(peers == 2, pair, np.fmax(level * few, _PEER_SPREADS * spread)).astype(np.float32))
    return found
