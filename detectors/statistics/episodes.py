"""Slow episodes: since when a device has been slow, and by how much that slows down the job.

A restart would put a typical device in its place. So nothing is lost by what a device is slower than its own past, but
not than its typical peer: it may have been idle or cold when its past was learned.
"""

from __future__ import annotations

import math

import numpy as np

from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import share_lost
from laggard.detectors.statistics.estimates import Floats
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import PEER, RESTART, History


def episode_at(row: int, history: History, grouping: Grouping, typical: Floats) -> Episode | None:
    """Return the episode that a device is in; ``None`` if it is not slow."""
    if not history.rounds[row]:
        return None
    sizes = history.last_residuals(row)
    usual = float(history.baseline[row])
    has_past = not math.isnan(usual)
    above_typical = sizes + np.float32((usual if has_past else 0.0) - float(typical[grouping.codes[row]]))
    is_by_peers = not has_past or history.evidence[PEER, RESTART, row] >= 1
    sizes = above_typical if is_by_peers else np.fmin(sizes, above_typical)
    slowdowns = np.exp(sizes[~np.isnan(sizes)])
    if not len(slowdowns):
        return None
    lost = float(np.mean([share_lost(max(1.0, float(each))) for each in slowdowns]))
    n_costly = max(len(slowdowns), int(history.run[:, RESTART, row].max()))
    costly_part = min(1.0, n_costly / int(history.rounds[row]))
    return Episode(float(history.since_s[row]), float(slowdowns[0]), lost, costly_part)
