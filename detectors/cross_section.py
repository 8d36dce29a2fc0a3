"""Born slow: one cross-section of devices, without any history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.history import RESTART
from detectors.statistics import Floats, Group, center_and_spread, count_of
from detectors.thresholds import Thresholds

__all__ = ["born_slow"]

_NOISES = 2.1  # a window's fastest sample is off by less than one round's
_PASSES = 3
_MAJORITY = 0.45


def born_slow(
    log_seconds: Floats, noise: Floats, groups: Sequence[Group], thresholds: Thresholds
) -> tuple[Floats, NDArray[np.intp]]:
    """Judge each device against its group.

    The reference is the group without the devices that the pass before found slow: a slow quarter would move the middle
    by half a spread, and widen the spread by a fifth.

    Parameters
    ----------
    log_seconds, noise
        Each device's fastest log time and its standard deviation, ``(n_probes, n_devices)``.

    Returns
    -------
    slowdown
        Ratio to the group's middle on the worst probe.
    level
        ``REPORT`` or ``RESTART``; ``-1`` for neither.
    """
    counts = count_of(~np.isnan(log_seconds), groups)
    codes = np.zeros(log_seconds.shape[1], np.intp)
    for number, group in enumerate(groups):
        codes[group] = number
    typical_noise = np.array([[_middle_mean(row[group]) for group in groups] for row in noise], np.float32)
    slow = np.zeros(log_seconds.shape, np.bool_)
    for _ in range(_PASSES):
        middle, spread = center_and_spread(np.where(slow, np.nan, log_seconds), groups)
        limits = thresholds.against_peers(typical_noise, spread, counts, _NOISES)
        offset = log_seconds - middle[:, codes]
        slow = offset > limits[RESTART][:, codes]
    level = np.full(len(codes), -1, np.intp)
    for limit in limits:
        beyond = offset > limit[:, codes]
        crowded = (count_of(beyond, groups) >= _MAJORITY * np.maximum(counts, 1)) & (counts != 2)
        level += (beyond & ~crowded[:, codes]).any(axis=0)
    return np.exp(np.fmax.reduce(offset, axis=0)), level


def _middle_mean(noise: Floats) -> float:
    """Return the mean of the middle half: steadier than the median of few devices, and as deaf to a few noisy ones."""
    there = np.sort(noise[~np.isnan(noise)])
    cut = len(there) // 4
    return float(there[cut : len(there) - cut].mean()) if len(there) else 0.0
