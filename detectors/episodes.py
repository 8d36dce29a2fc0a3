"""Slow episodes: since when a device has been slow, and by how much that slows down the job.

A restart would put a typical device in its place. So nothing is lost by what a device is slower than its own past, but
not than its typical peer: it may have been idle or cold when its past was learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.detectors.grouping import Grouping
from laggard.detectors.history import PEER, RESTART, History
from laggard.detectors.restart_cost import share_lost
from laggard.detectors.statistics import Floats

__all__ = ["Episode", "episode_at"]


@dataclass(frozen=True, slots=True)
class Episode:
    """A time in which a device is slow, from its first slow round on; single rounds may be as fast as ever.

    Attributes
    ----------
    since_s
        Unix time of the first slow round; ``NaN`` if unknown.
    slowdown
        The newest reading over its own past or over that of its typical peer now, whichever is less; over its typical
        peer's alone if its peers accuse it as well.
    share_lost
        Mean share of the job's time that its last rounds cost, eight at most.
    costly_part
        The part of it to which that applies: before, it may have been much less slow.
    """

    since_s: float
    slowdown: float
    share_lost: float
    costly_part: float = 1.0


def episode_at(row: int, history: History, grouping: Grouping, typical: Floats) -> Episode | None:
    """Return the episode that a device is in; ``None`` if it is not slow.

    Parameters
    ----------
    typical
        Where the typical device of each group is, relative to the group's common mode, ``(n_probes, n_groups)``.
    """
    if not history.rounds[row]:
        return None
    evidence = history.evidence[:, RESTART, :, row]
    probe = int(np.argmax(evidence.max(axis=0)))
    sizes = history.last_residuals(row, probe)
    usual = float(history.baseline[probe, row])
    has_past = not math.isnan(usual)
    above_typical = sizes + np.float32((usual if has_past else 0.0) - float(typical[probe, grouping.codes[row]]))
    is_by_peers = not has_past or evidence[PEER, probe] >= 1
    sizes = above_typical if is_by_peers else np.fmin(sizes, above_typical)
    slowdowns = np.exp(sizes[~np.isnan(sizes)])
    if not len(slowdowns):
        return None
    lost = float(np.mean([share_lost(max(1.0, float(each))) for each in slowdowns]))
    n_costly = max(len(slowdowns), int(history.run[:, RESTART, probe, row].max()))
    costly_part = min(1.0, n_costly / int(history.rounds[row]))
    return Episode(float(history.since_s[row]), float(slowdowns[0]), lost, costly_part)
