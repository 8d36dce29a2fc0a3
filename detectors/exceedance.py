"""Which readings of a round exceed what a healthy device may show, against its own past and against its peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.grouping import Grouping
from detectors.history import WARM_UP, History
from detectors.statistics import Floats, Group, RollingMean, center_and_spread, count_of, high_median
from detectors.thresholds import Thresholds

__all__ = ["Exceedances", "Scales", "compare"]

_MAJORITY = 0.45  # when this share of a group looks slow at once, the peers cannot say who is right
_UNREST_DEVICES = 4  # of fewer, one that became faster by chance would pass for a restless round, and hide a slow one
_NOISE_FLOOR = 0.001
# Against peers, a device's own noise excuses no more than this: one that is at times much slower than they ever are
# is no noisy device but a slow one.
_NOISY, _VERY_NOISY = 5.0, 0.1  # times its group's noise, or in log seconds, whichever is more
# Of a single change between two rounds, as a standard deviation of the rounds: 1 / sqrt(2), and half as much again
# because neighbours in time are alike (correlation 0.56 on V100s).
_CHANGE_TO_NOISE = 1.06


@dataclass(frozen=True, slots=True)
class Exceedances:
    """One round's comparison, each array ``(n_probes, n_devices)``.

    Attributes
    ----------
    exceeds
        By test and level.
    tested
        By test: readings that could be compared.
    residual
        Log time over the device's expected one.
    level
        The group's common mode, in log seconds.
    """

    exceeds: tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]
    tested: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    residual: Floats
    level: Floats


class Scales:
    """What is learned about the groups' noise and spread.

    Attributes
    ----------
    noise
        Each device's own, or its group's where that is more.
    peer_noise
        What of it excuses a device that is slower than its peers.
    """

    def __init__(self, history: History, grouping: Grouping) -> None:
        self.spread, self.early = RollingMean(WARM_UP), RollingMean(WARM_UP)
        self.noise = self.peer_noise = history.noise
        self.learn_noise(history, grouping)

    def learn_noise(self, history: History, grouping: Grouping) -> None:
        """Take each device's noise: its own, or its group's where that is more, as eight rounds are few."""
        typical = grouping.spread_out(high_median(history.noise, grouping.groups))
        self.noise = np.fmax(np.fmax(history.noise, typical), np.float32(_NOISE_FLOOR))
        self.peer_noise = np.fmin(self.noise, np.fmax(np.float32(_NOISY) * typical, np.float32(_VERY_NOISY)))


def compare(
    log_seconds: Floats,
    repeat_noise: Floats | None,
    history: History,
    scales: Scales,
    grouping: Grouping,
    thresholds: Thresholds,
) -> Exceedances:
    """Compare a round's log times ``(n_probes, n_devices)`` with the past and with the peers.

    ``repeat_noise`` is needed while a device is still learning its baseline.
    """
    out, groups = grouping.spread_out, grouping.groups
    valid = ~np.isnan(log_seconds)
    learned = ~np.isnan(history.baseline)
    count = count_of(valid, groups)
    middle, spread = center_and_spread(log_seconds, groups)
    common, unrest = center_and_spread(log_seconds - history.baseline, groups)
    unknown = np.isnan(common)
    level = np.broadcast_to(out(np.where(unknown, middle, common)), log_seconds.shape)
    residual = log_seconds - level
    slower = [np.zeros(valid.shape, np.bool_)] * 2
    if learned.any():
        residual -= np.where(learned, history.baseline, np.float32(0))
        unrest = np.where(unknown | (count < _UNREST_DEVICES), np.float32(0), unrest)
        noise = np.fmax(scales.noise, out(unrest))
        limits = thresholds.against_self(noise)
        slower = [_slower_than_before(limit, residual, learned, level, history, count, grouping) for limit in limits]

    scales.spread.add(spread)
    peer_noise = scales.peer_noise
    if repeat_noise is not None:
        scales.early.add(_early_noise(repeat_noise, residual, history, groups))
        early = out(scales.early.mean())
        peer_noise = np.where(learned, scales.peer_noise, early) if learned.any() else early
    offset = log_seconds - out(middle)
    limits = thresholds.against_peers(peer_noise, scales.spread.mean(), count, spread_out=out)
    born = [_slower_than_peers(limit, offset, count, grouping) for limit in limits]
    return Exceedances(
        (slower, born), (valid & learned, valid & out(count > 1) & ~np.isnan(peer_noise)), residual, level
    )


def _slower_than_before(
    limit: Floats,
    residual: Floats,
    learned: NDArray[np.bool_],
    level: Floats,
    history: History,
    count: NDArray[np.intp],
    grouping: Grouping,
) -> NDArray[np.bool_]:
    """Return which residuals exceed; where too many of a group do, only those that rose without their group too."""
    slow = learned & (residual > limit)
    crowded = count_of(slow, grouping.groups) >= _MAJORITY * np.maximum(count, 1)
    if crowded.any():
        slow &= (residual + (level - history.common) > limit) | ~grouping.spread_out(crowded)
    return slow


def _slower_than_peers(limit: Floats, offset: Floats, count: NDArray[np.intp], grouping: Grouping) -> NDArray[np.bool_]:
    """Return which offsets from the peers' middle exceed; none where too many of a group do."""
    slow = offset > limit
    crowded = (count_of(slow, grouping.groups) >= _MAJORITY * np.maximum(count, 1)) & (count != 2)
    if crowded.any():
        slow &= ~grouping.spread_out(crowded)
    return slow


def _early_noise(repeat_noise: Floats, residual: Floats, history: History, groups: Sequence[Group]) -> Floats:
    """Return each group's noise before baselines are known: from the repeats, else from the change since last round."""
    by_repeats = high_median(repeat_noise, groups)
    if not np.isnan(by_repeats).any():
        return by_repeats
    changes = np.where(np.isnan(history.baseline), np.abs(residual - history.last()), np.float32(np.nan))
    by_change = high_median(changes, groups) * np.float32(1.4826 * _CHANGE_TO_NOISE)
    return np.where(np.isnan(by_repeats), by_change, by_repeats)
