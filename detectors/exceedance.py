"""Exceedances: readings beyond what a healthy device may show, against its past, its peers, or in one cross-section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.grouping import Grouping
from laggard.detectors.history import RESTART, WARM_UP, History
from laggard.detectors.statistics import (
    Floats,
    Group,
    RollingMean,
    center_and_spread,
    count_of,
    deviation_per_distance,
    high_median,
)
from laggard.detectors.thresholds import Thresholds

__all__ = ["Exceedances", "Scales", "born_slow", "compare"]

_NOISES = 2.1  # the fastest sample of a window varies less than that of one round
_PASSES = 3
_MAJORITY = 0.45  # if this share of a group looks slow at once, the peers cannot tell which devices are slow
_UNREST_DEVICES = 4  # with fewer, one that is faster by chance would make the round look noisy, and hide a slow one
_NOISE_FLOOR = 0.001
# Against peers, a device's own noise raises its limit no further than this: one that is at times much slower than they
# ever are is not noisy but slow.
_NOISY, _VERY_NOISY = 5.0, 0.1  # times its group's noise, or in log seconds, whichever is more
# Turns the change between two rounds into the standard deviation of a round: 1 / sqrt(2), and half as much again since
# consecutive rounds are correlated (0.56 on V100s).
_CHANGE_TO_NOISE = 1.06


def born_slow(
    log_seconds: Floats, noise: Floats, groups: Sequence[Group], thresholds: Thresholds, noises: float = _NOISES
) -> tuple[Floats, NDArray[np.intp]]:
    """Judge each device against its group.

    The reference is the group without the devices that the previous pass found slow: a slow quarter would move the
    median by half a spread, and widen the spread by a fifth.

    Parameters
    ----------
    log_seconds, noise
        Each device's log time and its standard deviation, ``(n_probes, n_devices)``.
    noises
        By how many times the noise of its group a log time may be off.

    Returns
    -------
    slowdown
        Ratio to the group's median on the worst probe.
    level
        ``REPORT``, ``RESTART``, or ``-1`` for neither.
    """
    counts = count_of(~np.isnan(log_seconds), groups)
    codes = np.zeros(log_seconds.shape[1], np.intp)
    for number, group in enumerate(groups):
        codes[group] = number
    typical_noise = np.array([[_interquartile_mean(row[group]) for group in groups] for row in noise], np.float32)
    slow = np.zeros(log_seconds.shape, np.bool_)
    for _ in range(_PASSES):
        middle, spread = center_and_spread(np.where(slow, np.nan, log_seconds), groups)
        limits = thresholds.against_peers(typical_noise, spread, counts, noises)
        offset = log_seconds - middle[:, codes]
        slow = offset > limits[RESTART][:, codes]
    level = np.full(len(codes), -1, np.intp)
    for limit in limits:
        beyond = offset > limit[:, codes]
        crowded = (count_of(beyond, groups) >= _MAJORITY * np.maximum(counts, 1)) & (counts != 2)
        level += (beyond & ~crowded[:, codes]).any(axis=0)
    return np.exp(np.fmax.reduce(offset, axis=0)), level


def _interquartile_mean(noise: Floats) -> float:
    """Return the interquartile mean: steadier than the median with few devices, and as robust to a few noisy ones."""
    known = np.sort(noise[~np.isnan(noise)])
    cut = len(known) // 4
    return float(known[cut : len(known) - cut].mean()) if len(known) else 0.0


@dataclass(frozen=True, slots=True)
class Exceedances:
    """The comparison of one round; each array is ``(n_probes, n_devices)``.

    Attributes
    ----------
    exceeds
        By test and level: which readings exceed their limit.
    tested
        By test: which readings could be compared.
    residual
        Log time relative to the device's expected one.
    level
        The group's common mode, in log seconds.
    """

    exceeds: tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]
    tested: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    residual: Floats
    level: Floats


class Scales:
    """The groups' noise and spread, as learned so far.

    Attributes
    ----------
    noise
        Each device's own noise, or its group's if that is more.
    peer_noise
        The part of it that raises a device's limit against its peers.
    """

    def __init__(self, history: History, grouping: Grouping) -> None:
        self.spread, self.early = RollingMean(WARM_UP), RollingMean(WARM_UP)
        self.noise = self.peer_noise = history.noise
        self.learn_noise(history, grouping)

    def learn_noise(self, history: History, grouping: Grouping) -> None:
        """Update each device's noise: its own, or its group's if that is more, because eight rounds are few."""
        typical = grouping.per_device(high_median(history.noise, grouping.groups))
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
    """Compare a round's log times ``(n_probes, n_devices)`` with the devices' past and with their peers.

    ``repeat_noise`` is needed while a device is still learning its baseline.
    """
    out, groups = grouping.per_device, grouping.groups
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
    limits = thresholds.against_peers(peer_noise, scales.spread.mean(), count, per_device=out)
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
    """Return which residuals exceed; if too many of a group do, only those that also exceed without the common mode."""
    slow = learned & (residual > limit)
    crowded = count_of(slow, grouping.groups) >= _MAJORITY * np.maximum(count, 1)
    if crowded.any():
        slow &= (residual + (level - history.common) > limit) | ~grouping.per_device(crowded)
    return slow


def _slower_than_peers(limit: Floats, offset: Floats, count: NDArray[np.intp], grouping: Grouping) -> NDArray[np.bool_]:
    """Return which offsets from the peers' median exceed; none if too many of a group do."""
    slow = offset > limit
    crowded = (count_of(slow, grouping.groups) >= _MAJORITY * np.maximum(count, 1)) & (count != 2)
    if crowded.any():
        slow &= ~grouping.per_device(crowded)
    return slow


def _early_noise(repeat_noise: Floats, residual: Floats, history: History, groups: Sequence[Group]) -> Floats:
    """Return each group's noise before baselines are known: from the repeats, else from the change between rounds."""
    by_repeats = high_median(repeat_noise, groups)
    if not np.isnan(by_repeats).any():
        return by_repeats
    changes = np.where(np.isnan(history.baseline), np.abs(residual - history.last()), np.float32(np.nan))
    by_change = high_median(changes, groups) * np.float32(deviation_per_distance() * _CHANGE_TO_NOISE)
    return np.where(np.isnan(by_repeats), by_change, by_repeats)
