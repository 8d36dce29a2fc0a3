"""Born slow: one cross-section of devices, without any history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Floats, center_and_spread
from detectors.thresholds import Thresholds

__all__ = ["born_slow"]

_NOISY = 0.005  # standard deviation of log time within a device from which readings are noisy step times, not a probe's
_SPREADS_PROBE, _SPREADS_NOISY = 4.0, 6.0
_SPREAD_FLOOR = 0.003


def born_slow(
    log_seconds: Floats, noise: Floats, groups: Sequence[NDArray[np.intp] | slice], thresholds: Thresholds
) -> tuple[Floats, NDArray[np.int8], NDArray[np.intp]]:
    """Judge each device against its group.

    Returns
    -------
    slowdown
        Ratio to the group's middle on the worst probe.
    level
        ``-1`` nothing, ``REPORT`` or ``RESTART``.
    peers
        Devices in the group with a reading, the one itself included.
    """
    devices = len(log_seconds)
    slowdown, level = np.ones(devices, np.float32), np.full(devices, -1, np.int8)
    peers = np.zeros(devices, np.intp)
    for rows in groups:
        values = log_seconds[rows]
        count = np.count_nonzero(~np.isnan(values), axis=0)
        middle, spread = center_and_spread(log_seconds, [rows])
        typical = np.nanmedian(noise[rows], axis=0) if np.isfinite(noise[rows]).any() else np.zeros(values.shape[1])
        spreads = np.where(typical < _NOISY, _SPREADS_PROBE, _SPREADS_NOISY)
        offset = np.nan_to_num(values - middle[0], nan=-np.inf)
        limits = thresholds.against_peers(
            np.zeros_like(middle[0]), np.maximum(spread[0], _SPREAD_FLOOR), count, spreads
        )
        slow = offset[:, :, None] > limits
        worst = np.argmax(offset, axis=1)
        slowdown[rows] = np.exp(offset[np.arange(len(offset)), worst])
        level[rows] = slow.any(axis=1).sum(axis=1) - 1
        peers[rows] = int(count.max())
    return slowdown, level, peers
