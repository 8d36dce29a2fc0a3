"""Exceedances: readings beyond what a healthy device may show, against its past, its peers, or in one cross-section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.estimates import (
    Floats,
    Group,
    RollingMean,
    center_and_spread,
    count_of,
    deviation_per_distance,
    high_median,
    low_median,
)
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import REPORT, RESTART, WARM_UP, History
from laggard.detectors.statistics.thresholds import SELF_NOISES, Thresholds

_PASSES = 3  # each leaves out what the last one found slow
_MAJORITY = 0.45  # if this share of a group looks slow at once, the peers cannot tell which devices are slow
_UNREST_DEVICES = 4  # with fewer, one that is faster by chance would make the round look noisy, and hide a slow one
_NOISE_FLOOR = 0.001  # a device that looks quieter has been so by chance
# The change from round to round over the distance from the past: 0.92 if rounds are independent, less if noise lasts.
_WHITE, _WHITE_TO_LASTING, _WHITE_ROUNDS = 0.82, 0.25, 10
_FEWEST_NOISES = 2.0
_WANDER_DEVICES = 3  # of two devices, one that slowly becomes slower would excuse itself
_WANDER_ROUNDS, _WANDER_PRIOR = 64, 2  # over how many rounds it is a mean, and with how many rounds at 0 it starts
# A device's own noise raises its limits no further than this: one that is at times much slower than its peers ever are
# is not noisy but slow.
_NOISY, _VERY_NOISY = 5.0, 0.05  # times its group's noise, or in log seconds, whichever is more
_FAR, _FAR_LIMITS = 1.6, 3.0  # a slowdown, or so many limits, beyond which no exceedance is noise of a device's own
# Turns the change between two rounds into the standard deviation of a round: 1 / sqrt(2), and half as much again since
# consecutive rounds are correlated (0.56 on V100s).
_CHANGE_TO_NOISE = 1.06


def born_slow(
    log_seconds: Floats, noise: Floats, groups: Sequence[Group], thresholds: Thresholds, noises: float
) -> tuple[Floats, list[NDArray[np.bool_]]]:
    """Return how far each device is behind its group, in log seconds, and by level which devices exceed."""
    # The reference is the group without the devices that the previous pass found slow: a slow quarter would move the
    # median by half a spread, and widen the spread by a fifth.
    counts = count_of(~np.isnan(log_seconds), groups)
    codes = np.zeros(len(log_seconds), np.intp)
    for number, group in enumerate(groups):
        codes[group] = number
    typical_noise = np.array([_interquartile_mean(noise[group]) for group in groups], np.float32)
    slow = np.zeros(log_seconds.shape, np.bool_)
    for _ in range(_PASSES):
        middle, spread = center_and_spread(np.where(slow, np.nan, log_seconds), groups)
        limits = thresholds.against_peers(typical_noise, spread, counts, noises)
        offset = log_seconds - middle[codes]
        slow = offset > limits[RESTART][codes]
    exceeds = []
    for limit in limits:
        beyond = offset > limit[codes]
        crowded = (count_of(beyond, groups) >= _MAJORITY * counts) & (counts != 2)
        exceeds.append(beyond & ~crowded[codes])
    return offset, exceeds


def _interquartile_mean(noise: Floats) -> float:
    """Return the interquartile mean: steadier than the median with few devices, and as robust to a few noisy ones."""
    known = np.sort(noise[~np.isnan(noise)])
    cut = len(known) // 4
    return float(known[cut : len(known) - cut].mean()) if len(known) else 0.0


@dataclass(frozen=True, slots=True)
class Exceedances:
    """The comparison of one round; each array is ``(n_devices,)``."""

    # By test and level: which readings exceed their limit
    exceeds: tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]
    # By test: which readings exceed by so much that a device's own noise is no excuse
    far: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    tested: tuple[NDArray[np.bool_], NDArray[np.bool_]]  # by test: which readings could be compared
    residual: Floats  # log time relative to the device's expected one
    level: Floats  # the group's common mode, in log seconds
    pace: Floats
    typical: Floats  # where the typical device of each group is relative to it, `(n_groups,)`


class Scales:
    """The groups' noise and spread, as learned so far."""

    def __init__(self, history: History, grouping: Grouping) -> None:
        self.spread, self.early = RollingMean(WARM_UP), RollingMean(WARM_UP)
        # Each device's own noise, or its group's if that is more; but never much more than that of its quieter peers
        self.noise = history.noise
        # How far from their own past a group's devices typically are, over the last 64 rounds or so, as a standard
        # deviation: noise that lasts longer than eight rounds shows only here, `(n_groups,)`
        self.wander = np.zeros(len(grouping), np.float32)
        self.change = np.zeros_like(self.wander)
        self._rounds = np.full_like(self.wander, _WANDER_PRIOR)
        self.learn_noise(history, grouping)

    def learn_noise(self, history: History, grouping: Grouping) -> None:
        """Update each device's noise: its own, or its group's if that is more, because eight rounds are few."""
        self._typical = np.fmax(high_median(history.noise, grouping.groups), np.float32(_NOISE_FLOOR))
        typical = grouping.per_device(self._typical)
        quieter = grouping.per_device(low_median(history.noise, grouping.groups))
        most = np.fmax(np.float32(_NOISY) * quieter, np.float32(_VERY_NOISY))
        self.noise = np.fmin(np.fmax(history.noise, typical), most)

    def learn_wander(self, residual: Floats, last: Floats, slow: NDArray[np.bool_], groups: Sequence[Group]) -> None:
        """Learn from a round's residuals, ``NaN`` without baseline; leave slow ones out."""
        calm = np.where(slow, np.float32(np.nan), residual)
        enough = count_of(~np.isnan(calm), groups) >= _WANDER_DEVICES
        self._rounds = np.fmin(self._rounds + enough, np.float32(_WANDER_ROUNDS))
        for mean, distance in ((self.wander, np.abs(calm)), (self.change, np.abs(calm - last) * np.float32(0.5**0.5))):
            more = np.float32(deviation_per_distance()) * high_median(distance, groups) - mean
            mean += np.where(enough & ~np.isnan(more), more / self._rounds, np.float32(0))

    def allowed(self, unrest: Floats, grouping: Grouping) -> Floats:
        """Return how far a healthy device may be from its past: five times its noise, ``(n_devices,)``."""
        # If noise does not last, several small exceedances in a row are evidence: then it is twice its group's noise.
        out, lasting = grouping.per_device, self.lasting()
        noise = np.fmax(
            out(self._typical) + out(lasting) * (self.noise - out(self._typical)), out(np.fmax(unrest, self.wander))
        )
        return np.asarray(out(_FEWEST_NOISES + (SELF_NOISES - _FEWEST_NOISES) * lasting) * noise)

    def lasting(self) -> Floats:
        """Return how much of each group's noise lasts, from 0 to 1; 1 until it is known, ``(n_groups,)``."""
        lasting = (_WHITE - self.change / np.fmax(self.wander, np.float32(_NOISE_FLOOR))) / _WHITE_TO_LASTING
        return np.where(self._rounds < _WHITE_ROUNDS, 1, np.clip(lasting, 0, 1)).astype(np.float32)

    def blurred(self, smallest: float) -> tuple[Floats, NDArray[np.bool_]]:
        """Return what noise allows where that is more than ``smallest``, else 0; and where it lasts."""
        # Both `(n_groups,)`; 0 before noise is known.
        lasting = self.lasting()
        allowed = (_FEWEST_NOISES + np.float32(SELF_NOISES - _FEWEST_NOISES) * lasting) * self.wander
        is_known = (self._rounds >= _WANDER_ROUNDS) & (allowed > smallest)
        return np.where(is_known, allowed, 0).astype(np.float32), lasting >= 1


def compare(
    log_seconds: Floats,
    repeat_noise: Floats | None,
    history: History,
    scales: Scales,
    grouping: Grouping,
    thresholds: Thresholds,
) -> Exceedances:
    """Compare a round's log times ``(n_devices,)`` with the devices' past and with their peers."""
    # `repeat_noise` is needed while a device is still learning its baseline.
    out, groups = grouping.per_device, grouping.groups
    valid = ~np.isnan(log_seconds)
    learned = ~np.isnan(history.baseline)
    count = count_of(valid, groups)
    middle, spread = center_and_spread(log_seconds, groups)
    common, unrest = center_and_spread(log_seconds - history.baseline, groups)
    unknown = np.isnan(common)
    pace = np.where(unknown, middle, common)
    level = np.broadcast_to(out(pace), log_seconds.shape)
    residual = log_seconds - level
    slower = [np.zeros(valid.shape, np.bool_)] * 2
    far = slower[RESTART]
    if learned.any():
        residual -= np.where(learned, history.baseline, np.float32(0))
        unrest = np.where(unknown | (count < _UNREST_DEVICES), np.float32(0), unrest)
        limits = thresholds.against_self(scales.allowed(unrest, grouping))
        slower = [_slower_than_before(limit, residual, learned, level, history, count, grouping) for limit in limits]
        far = _far(residual, limits[RESTART])

    scales.spread.add(spread)
    peer_noise = np.fmax(scales.noise, np.fmin(out(scales.wander), np.float32(_VERY_NOISY)))
    if repeat_noise is not None:
        scales.early.add(_early_noise(repeat_noise, residual, history, groups))
        early = out(scales.early.mean())
        peer_noise = np.where(learned, peer_noise, early) if learned.any() else early
    offset = log_seconds - out(middle)
    limits = thresholds.against_peers(peer_noise, scales.spread.mean(), count, per_device=out)
    born = [_slower_than_peers(limit, offset, count, grouping) for limit in limits]
    if learned.any():
        # A restless round excuses a slow device, but must not teach that it is calm.
        in_quiet = thresholds.against_self(scales.allowed(np.zeros_like(unrest), grouping))[REPORT]
        known = np.where(learned, residual, np.float32(np.nan))
        scales.learn_wander(known, history.last(), slower[REPORT] | (residual > in_quiet), grouping.samples)
    return Exceedances(
        (slower, born),
        (far, _far(offset, limits[RESTART])),
        (valid & learned, valid & out(count > 1) & ~np.isnan(peer_noise)),
        residual,
        level,
        pace,
        middle - pace,
    )


def _far(excess: Floats, limit: Floats) -> NDArray[np.bool_]:
    return np.asarray(excess > np.maximum(np.float32(np.log(_FAR)), np.float32(_FAR_LIMITS) * limit))


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
    crowded = count_of(slow, grouping.groups) >= _MAJORITY * count
    if crowded.any():
        slow &= (residual + (level - history.common) > limit) | ~grouping.per_device(crowded)
    return slow


def _slower_than_peers(limit: Floats, offset: Floats, count: NDArray[np.intp], grouping: Grouping) -> NDArray[np.bool_]:
    """Return which offsets from the peers' median exceed; none if too many of a group do."""
    slow = offset > limit
    crowded = (count_of(slow, grouping.groups) >= _MAJORITY * count) & (count != 2)
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
