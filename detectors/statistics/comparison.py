"""Comparison of a round with the devices' past and with their peers, in log seconds; ``NaN``: not known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics import noise
from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.estimates import DEVIATION_PER_DISTANCE, Floats
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import WARM_UP, WHOLE, History
from laggard.detectors.statistics.thresholds import RESTART, Thresholds

_MAJORITY = 0.45  # if this share of a group looks slow at once, the peers cannot tell which devices are slow
_STEP_NOISES = 3.0  # of a step within the first rounds


@dataclass(frozen=True, slots=True)
class Compared:
    """How a round compares; by device but for the pace."""

    pace: Floats  # each group's common mode
    relative: Floats  # slower than that
    own: Floats  # slower than the device's own past
    by_peers: Floats  # slower than its typical peer
    allowed: Floats  # by how much a healthy device may be so


@dataclass
class Pace(Arrays):
    """Where the groups' common mode and their typical devices are, as learned so far."""

    usual: Floats = of(np.nan)
    typical: Floats = of(np.nan)
    spread: Floats = of(np.nan)
    rounds: Floats = of()

    def compare(self, log_seconds: Floats, history: History, grouping: Grouping, thresholds: Thresholds) -> Compared:
        """Compare a round's log times ``(n_devices,)``."""
        out = grouping.per_device
        middle, spread = grouping.center_and_spread(log_seconds)
        common = grouping.low_median(log_seconds - history.base)
        pace = np.where(np.isnan(common), middle, common)
        self.rounds += ~np.isnan(pace)
        weight = 1 / np.clip(self.rounds, 1, WARM_UP)
        for mean, now in ((self.typical, middle - pace), (self.spread, spread)):
            more = np.where(np.isnan(mean), now, (now - mean) * weight)
            np.copyto(mean, np.where(np.isnan(mean), now, mean + more), where=~np.isnan(now))
        relative = log_seconds - out(pace)
        # Who was like its peers when its past was learned is not slow because faster ones have come since.
        typical = np.fmax(history.typical, out(self.typical))
        allowed = thresholds.against_peers(self.spread, grouping.count(~np.isnan(log_seconds)))[RESTART]
        return Compared(pace, relative, relative - history.base, relative - typical, out(allowed))

    def residual(
        self, compared: Compared, last: Floats, size: Floats, smallest: float, grouping: Grouping
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return the residuals, against the past or the peers, whichever is more, and which groups are half slow.

        Between them, what each was before, given the last ones against the past: the same if the peers decide.
        """
        own, by_peers, out = compared.own, compared.by_peers - compared.allowed, grouping.per_device
        count = grouping.count(~np.isnan(by_peers))
        # If many of a group look slow at once, others may have become faster: only who is slower in seconds, too, is.
        crowded = grouping.count(own > size / 2) >= _MAJORITY * count
        if crowded.any():
            own = np.where(out(crowded), np.minimum(own, own + out(compared.pace - self.usual)), own)
        weight = np.where(np.isnan(self.usual), 1, 1 / np.clip(self.rounds, 1, WHOLE))
        usual = np.where(np.isnan(self.usual), compared.pace, self.usual + weight * (compared.pace - self.usual))
        np.copyto(self.usual, usual, where=~crowded & ~np.isnan(compared.pace))
        tied = (grouping.count(by_peers > 0) >= _MAJORITY * count) & (count != 2) | (count < 2)
        by_peers = np.where(out(tied), np.float32(np.nan), by_peers + np.float32(smallest / 2))
        found = np.fmax(own, by_peers)
        return found, np.where((found == own) & ~np.isnan(last), last, found), crowded


def learn(
    history: History,
    compared: Compared,
    typical: Floats,
    variance: Floats,
    least: np.float32,
    smallest: float,
    in_state: NDArray[np.bool_],
) -> None:
    """Learn from a round: a device's noise at once, its past once there is no evidence; not in a lower state."""
    own, limit = compared.own, noise.limit(variance)
    known = ~np.isnan(own)
    change = own - history.last
    seen = noise.seen(np.square(change) / np.float32(2), np.maximum(history.change, least))
    more = (seen - history.change) / np.minimum(history.rounds + 1, WHOLE)
    history.change += np.where(np.isnan(change), 0, more)
    history.last = np.where(known, own, history.last)
    history.held[0] += np.where(known, np.clip(own, -limit, limit), 0)
    history.held[1] += np.where(known, noise.seen(own * own, variance), 0)
    history.n_held += known
    calm = (history.evidence[0] <= 0) & (history.n_held > 0)
    total, n_held = history.rounds + history.n_held, np.maximum(history.n_held, 1)
    history.base += np.where(calm & (history.rounds < WHOLE), history.held[0] / np.maximum(total, 1), 0)
    weight = n_held / np.maximum(np.minimum(total, WHOLE), n_held)
    history.distance += np.where(calm, (history.held[1] / n_held - history.distance) * weight, 0)
    history.rounds += np.where(calm, history.n_held, 0)
    history.held *= ~calm
    history.n_held *= ~calm
    new = np.flatnonzero(np.isnan(history.base) & in_state & ~np.isnan(compared.relative))
    if len(new):
        history.first[history.rounds[new].astype(np.intp), new] = history.last[new] = compared.relative[new]
        history.rounds[new] += 1
        ready = new[history.rounds[new] == WARM_UP]
        _begin_past(history, ready, variance[ready], smallest)
        history.typical[ready] = typical[ready]


def _begin_past(history: History, rows: NDArray[np.intp], variance: Floats, smallest: float) -> None:
    """Make a past of the first rounds: their median, but of a device that became slow in them their faster part."""
    first = history.first[:, rows]
    changes: Floats = np.diff(first, axis=0)
    ordered = np.sort(first, axis=0)
    base, faster = ordered[WARM_UP // 2 - 1 : WARM_UP // 2 + 1].mean(axis=0), ordered[1:3].mean(axis=0)
    for place in np.flatnonzero(base - faster > np.maximum(smallest / 2, _STEP_NOISES * np.sqrt(variance))):
        by_change = DEVIATION_PER_DISTANCE * np.median(np.abs(changes[:, place])) / np.sqrt(2)
        if base[place] - faster[place] > _STEP_NOISES * by_change:
            base[place] = faster[place]
    history.base[rows], history.last[rows] = base, first[-1] - base
    history.change[rows] = noise.seen((np.square(changes) / 2).astype(np.float32), variance).mean(axis=0)
    history.distance[rows] = noise.seen((first - base) ** 2, variance).mean(axis=0) * WARM_UP / (WARM_UP - 1)
