"""Slow episodes: since when a device has been slow, and how slow it is now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.detectors.grouping import Grouping
from laggard.detectors.history import PEER, RESTART, SELF, History
from laggard.detectors.restart_cost import share_lost
from laggard.detectors.statistics import center_and_spread

__all__ = ["Episode", "episode_at"]


@dataclass(frozen=True, slots=True)
class Episode:
    """A time in which a device is slow, from its first slow round on; single rounds may be as fast as ever.

    Attributes
    ----------
    since_s
        Unix time of the first slow round; ``NaN`` if unknown.
    slowdown
        The newest reading over its reference.
    share_lost
        Mean share of the job's time that its last rounds cost, eight at most.
    """

    since_s: float
    slowdown: float
    share_lost: float


def episode_at(row: int, history: History, grouping: Grouping) -> Episode | None:
    """Return the episode that a device is in; ``None`` if it is not slow."""
    if not history.rounds[row]:
        return None
    evidence = history.evidence[:, RESTART, :, row]
    test, probe = np.unravel_index(int(np.argmax(evidence)), evidence.shape)
    sizes = history.last_residuals(row, int(probe))
    if test == PEER and evidence[SELF, probe] < 1 and not np.isnan(history.baseline[probe, row]):
        usual, _ = center_and_spread(history.baseline, grouping.groups)
        sizes = sizes + (history.baseline[probe, row] - usual[probe, grouping.codes[row]])
    slowdowns = np.exp(sizes[~np.isnan(sizes)])
    if not len(slowdowns):
        return None
    lost = float(np.mean([share_lost(max(1.0, float(each))) for each in slowdowns]))
    return Episode(float(history.since_s[row]), float(slowdowns[0]), lost)
