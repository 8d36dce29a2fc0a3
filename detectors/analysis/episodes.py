"""Slow episodes: since when a device has been slow, and by how much that slows down the job.

A restart would put a typical device in its place. So nothing is lost by what a device is slower than its own past, but
not than its typical peer: it may have been idle or cold when its past was learned.  What is lost is counted from the
lower end of what is known, three standard errors below the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import share_lost
from laggard.detectors.statistics.estimates import Floats
from laggard.detectors.statistics.excursions import LARGE, Scale
from laggard.detectors.statistics.history import AT_TIMES, CLOCKS, WHOLE, History

_ERRORS = 3.0  # standard errors
_is_at_times = np.arange(CLOCKS)[:, None] == AT_TIMES


@dataclass(frozen=True, slots=True)
class Slowness:
    """How slow a device is by the largest size that was found, as ratios of times."""

    clock: int
    shown: float  # against its past, or against its peers if it has not become slower
    slowdown: float  # against both
    least: float  # three standard errors less
    own_past: bool  # whether it has become slower than it was
    rounds: float
    share: float  # of them in which it was slow


def note_slowness(history: History, own: Floats, by_peers: Floats, scale: Scale) -> None:
    """Add a round to the sums of how slow the devices in an excursion are."""
    # A reading counts up to the next size: a single one may be anything.
    most = np.concatenate([scale.size[1:AT_TIMES], np.full((1, own.size), np.inf, np.float32)])
    on = history.evidence > 0
    is_hit = on[AT_TIMES] & (history.run > 0)
    history.hits = np.where(on[AT_TIMES], history.hits + is_hit, 0)
    has_past = ~np.isnan(own)
    history.with_past += np.where(_is_at_times, has_past & is_hit, has_past)
    history.with_past *= on
    for sums, excess in zip(history.slower, (own, by_peers), strict=True):
        excess = np.nan_to_num(excess, copy=True, nan=0.0)
        sums[:AT_TIMES] += np.minimum(excess, most)
        sums[AT_TIMES] += np.where(is_hit, np.minimum(excess, most[LARGE]), 0)
        sums *= on


def slowness_at(
    row: int, history: History, scale: Scale, lasts: float, smallest: float, which: NDArray[np.bool_]
) -> Slowness | None:
    """Return how slow a device is by some of its excursions; ``None`` if there are none."""
    clocks = np.flatnonzero(which)
    if not len(clocks):
        return None
    at_times = clocks[0] == AT_TIMES
    clock = AT_TIMES if at_times else int(clocks[clocks < AT_TIMES][-1])
    rounds = max(1.0, float(history.lasts[clock, row]))
    hits = max(1.0, float(history.hits[row])) if at_times else rounds
    with_past = float(history.with_past[clock, row])
    own, by_peers = (history.slower[:, clock, row] / [max(with_past, 1.0), hits]).tolist()
    own_past = with_past > 0 and own >= smallest / 2
    slower = min(own, by_peers) if own_past else by_peers
    past = lasts / min(max(float(history.rounds[row]), 1.0), WHOLE) if own_past else 0.0
    error = np.sqrt(scale.variance[row] * (1 / (1 + (hits - 1) / lasts) + past))
    shown, slowdown, least = np.exp([own if own_past else by_peers, slower, slower - _ERRORS * error]).tolist()
    return Slowness(clock, shown, slowdown, least, own_past, rounds, hits / rounds)


def episode_at(row: int, history: History, slow: Slowness, *, is_now: bool) -> Episode | None:
    """Return the episode that a slow device is in, given whether it is slow now; ``None`` if it is not slow."""
    if slow.clock == AT_TIMES and not is_now:
        return None
    least, whole = max(1.0, slow.least), max(1.0, float(history.lasts[0, row]))
    costly = slow.share if slow.clock == AT_TIMES else min(1.0, slow.rounds / whole)
    is_usual = bool(history.usual[slow.clock, row])
    return Episode(float(history.since_s[row]), least if is_now else 1.0, share_lost(least), is_usual, costly)
