"""Robust statistics of one round, by group, and the bet that turns exceedances into evidence.

Pure functions of arrays whose last axis is the device and whose axis before is the probe; ``NaN`` marks a reading that
is not there.  A group is an index of devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Floats",
    "Group",
    "RollingMean",
    "bet",
    "center_and_spread",
    "count_of",
    "high_median",
    "log_fastest",
    "onset_weight",
    "repeat_noise",
]

Floats = NDArray[np.float32]
Group = NDArray[np.intp] | slice

_FAST_QUANTILES = {10: 1.2816, 5: 0.8416}  # one device in so many: minus that quantile of the standard normal
# Expected gap between the median (of two: the mean) and the fastest of m standard normal samples, m from 0.
_MEDIAN_TO_FASTEST = np.array([np.nan, np.nan, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424])
_FASTEST_NOISE = 0.75  # standard deviation of the fastest of three standard normal samples (of two 0.83, of five 0.67)
_SLOW_RATE = 0.8  # how often a slow device is taken to exceed, at least
_ONSET_POWER = 1.1
_ONSET_SUM = 10.5844484649508  # the Riemann zeta function at 1.1


def log_fastest(seconds: NDArray[np.floating]) -> tuple[Floats, NDArray[np.uint32]]:
    """Return the log of each device's fastest good repeat, and how many repeats of a device were bad.

    The fastest repeat is the least disturbed one [1]_: a disturbance can only add time.

    Parameters
    ----------
    seconds
        Shape ``(n_devices, n_probes, n_repeats)``; ``NaN`` where there is no reading.

    Returns
    -------
    log_seconds
        Shape ``(n_probes, n_devices)``, ``NaN`` without a single good repeat.
    bad
        Shape ``(n_devices,)``: readings that were zero, negative or infinite.

    References
    ----------
    .. [1] Chen and Revels, "Robust benchmarking in noisy environments", 2016.
    """
    repeats = [_good(seconds[:, :, number]) for number in range(seconds.shape[2])]
    if not repeats:
        return np.full(seconds.shape[1::-1], np.nan, np.float32), np.zeros(len(seconds), np.uint32)
    fastest = reduce(np.fmin, repeats)
    bad = np.zeros(len(seconds), np.uint32)
    if any(np.isnan(repeat).any() for repeat in repeats):
        bad += (~(seconds > 0) | np.isinf(seconds)).sum(axis=(1, 2)).astype(np.uint32)
        bad -= np.isnan(seconds).sum(axis=(1, 2)).astype(np.uint32)
    return np.log(np.ascontiguousarray(fastest.T, np.float32)), bad


def _good(seconds: NDArray[np.floating]) -> NDArray[np.floating]:
    good = (seconds > 0) & (seconds < np.inf)
    return seconds if good.all() else np.where(good, seconds, np.nan)


def repeat_noise(seconds: NDArray[np.floating]) -> Floats:
    """Return the standard deviation of a round's fastest log time, from the repeats' fast half (spikes do not count).

    From ``(n_devices, n_probes, n_repeats)`` to ``(n_probes, n_devices)``; ``NaN`` with fewer than two good repeats.
    """
    if seconds.shape[2] < 2:
        return np.full(seconds.shape[1::-1], np.nan, np.float32)
    ordered = np.sort(_good(seconds), axis=2)  # NaN sorts last
    counts = np.count_nonzero(~np.isnan(ordered), axis=2)
    ranks = np.stack([np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, seconds.shape[2] - 1)], axis=2)
    middle = np.take_along_axis(ordered, ranks, axis=2).mean(axis=2)
    scale = _FASTEST_NOISE / _MEDIAN_TO_FASTEST[np.minimum(counts, len(_MEDIAN_TO_FASTEST) - 1)]
    return np.ascontiguousarray((np.log(middle / ordered[:, :, 0]) * scale).T, np.float32)


def center_and_spread(values: Floats, groups: Sequence[Group]) -> tuple[Floats, Floats]:
    """Return the low median of each group and probe, and its standard deviation as seen from its fast half.

    The low median is the faster of the two middle values: with half the devices slow, it is still a good device's.
    The fast half (median less the 10 % or 20 % quantile, whichever says less, over that of the normal law) is not
    widened by a slow minority, as a two-sided scale is (masking), nor by one fast device.

    Returns
    -------
    center, spread
        Each ``(n_probes, n_groups)``; ``NaN`` for a group without readings.
    """
    found = np.array([[_center_and_spread(row[group]) for group in groups] for row in values], np.float32)
    return found[:, :, 0], found[:, :, 1]


def _center_and_spread(values: Floats) -> tuple[float, float]:
    count = len(values) - int(np.count_nonzero(np.isnan(values)))
    if not count:
        return np.nan, np.nan
    middle, *fast = ((count - 1) // 2, *((count - 1) // part for part in _FAST_QUANTILES))
    ordered = np.partition(values, (middle, *fast))  # NaN sorts last
    gaps = ordered[middle] - ordered[fast]
    return float(ordered[middle]), float(np.min(gaps / list(_FAST_QUANTILES.values())))


def high_median(values: Floats, groups: Sequence[Group]) -> Floats:
    """Return the greater of the two middle values of each group and probe, ``(n_probes, n_groups)``."""
    found = np.full((len(values), len(groups)), np.nan, np.float32)
    for probe, row in enumerate(values):
        for number, group in enumerate(groups):
            there = row[group][~np.isnan(row[group])]
            if len(there):
                found[probe, number] = np.partition(there, len(there) // 2)[len(there) // 2]
    return found


def count_of(flags: NDArray[np.bool_], groups: Sequence[Group]) -> NDArray[np.intp]:
    """Count what is true in each group, last axis devices to last axis groups."""
    return np.stack([np.count_nonzero(flags[..., group], axis=-1) for group in groups], axis=-1)


def onset_weight(round_number: int) -> float:
    """Return the share of the false-alarm budget spent on slowdowns that begin in this round (1, 2, ...).

    The shares sum to one over an endless run and fall slowly: round 1,000 pays 7.6 nats more than round 1.
    """
    return float(round_number**-_ONSET_POWER / _ONSET_SUM)


def bet(exceeds: NDArray[np.bool_], rate: Floats) -> Floats:
    """Return the factor by which one reading multiplies the evidence.

    A likelihood ratio of two coins: ``rate`` is the largest chance that a healthy device exceeds, against 0.8 (or
    half-way from ``rate`` to 1).  Its mean is at most 1 as long as the chance of exceeding is at most ``rate``.
    """
    slow_rate = np.maximum(np.float32(_SLOW_RATE), (1 + rate) / 2)
    return np.where(exceeds, slow_rate / rate, (1 - slow_rate) / (1 - rate))


class RollingMean:
    """Mean of the last rounds' values: of few devices, one round's scale is mostly chance."""

    def __init__(self, rounds: int) -> None:
        self._last: deque[Floats] = deque(maxlen=rounds)

    def add(self, values: Floats) -> None:
        """Take one round's values; ``NaN`` is no value."""
        self._last.append(values)

    def mean(self) -> Floats:
        """Return the mean, of the same shape as the values; ``NaN`` where none came."""
        stacked = np.stack(self._last)
        count = np.count_nonzero(~np.isnan(stacked), axis=0)
        return np.where(count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), np.nan).astype(np.float32)
