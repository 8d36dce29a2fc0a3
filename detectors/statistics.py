"""Robust statistics of one round, by group, and the bet that turns exceedances into evidence.

Pure functions of arrays whose last axis is the device and whose axis before is the probe; ``NaN`` marks a reading that
is not there.  A group is an index of devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

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
    "median_of_rows",
    "onset_weight",
    "repeat_noise",
    "repeats_of",
]

Floats = NDArray[np.float32]
Group = NDArray[np.intp] | slice

_FAST_QUANTILES = {10: 1.2816, 5: 0.8416}  # one device in so many: minus that quantile of the standard normal
# Expected gap between the median (of two: the mean) and the fastest of m standard normal samples, m from 0.
_MEDIAN_TO_FASTEST = np.array([np.nan, np.nan, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424])
_FASTEST_NOISE = 0.75  # standard deviation of the fastest of three standard normal samples (of two 0.83, of five 0.67)
_FEW_ROWS = 16
_SLOW_RATE = 0.8  # how often a slow device is taken to exceed, at least
_ONSET_POWER = 1.1
_ONSET_SUM = 10.5844484649508  # the Riemann zeta function at 1.1


def repeats_of(seconds: NDArray[np.floating]) -> tuple[Floats, NDArray[np.uint32]]:
    """Return a round's good repeats, fastest first, and how many readings of a device were bad.

    Parameters
    ----------
    seconds
        Shape ``(n_devices, n_probes, n_repeats)``; ``NaN`` where there is no reading.

    Returns
    -------
    ordered
        Shape ``(n_repeats, n_probes, n_devices)``; infinite where there is no good repeat.
    bad
        Shape ``(n_devices,)``: readings that were zero, negative or infinite.
    """
    with np.errstate(over="ignore"):  # what is beyond single precision is as good as infinite
        repeats = np.array(seconds.T, np.float32, order="C")
    bad = np.zeros(len(seconds), np.uint32)
    good = (repeats > 0) & (repeats < np.inf)
    if not good.all():
        bad += np.count_nonzero(~good & ~np.isnan(repeats), axis=(0, 1)).astype(np.uint32)
        repeats[~good] = np.inf
    return np.stack(_sorted_rows(repeats)) if len(repeats) else repeats, bad


def log_fastest(ordered: Floats) -> Floats:
    """Return the log of each device's fastest repeat, ``(n_probes, n_devices)``; ``NaN`` without a good one.

    The fastest repeat is the least disturbed one [1]_: a disturbance can only add time.

    References
    ----------
    .. [1] Chen and Revels, "Robust benchmarking in noisy environments", 2016.
    """
    if not len(ordered):
        return np.full(ordered.shape[1:], np.nan, np.float32)
    return np.asarray(np.log(np.where(np.isinf(ordered[0]), np.nan, ordered[0])), np.float32)


def repeat_noise(ordered: Floats) -> Floats:
    """Return the standard deviation of a round's fastest log time, from the repeats' fast half (spikes do not count).

    From ``(n_repeats, n_probes, n_devices)``, fastest first, to ``(n_probes, n_devices)``; ``NaN`` with fewer than two
    good repeats.
    """
    noise = np.full(ordered.shape[1:], np.nan, np.float32)
    counts = np.isfinite(ordered).sum(axis=0)
    for count in range(max(2, int(counts.min(initial=2))), len(ordered) + 1):
        here = counts == count
        if here.any():
            fastest, *middle = (ordered[rank][here] for rank in (0, (count - 1) // 2, count // 2))
            scale = _FASTEST_NOISE / _MEDIAN_TO_FASTEST[min(count, len(_MEDIAN_TO_FASTEST) - 1)]
            noise[here] = np.log((middle[0] + middle[1]) / (2 * fastest)) * np.float32(scale)
    return noise


def median_of_rows(rows: Floats) -> Floats:
    """Return the median along the first axis."""
    ordered = _sorted_rows(rows)
    return np.asarray((ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2)


def _sorted_rows(rows: Floats) -> list[Floats]:
    """Sort along the first axis; few rows by exchanging neighbours, in as many passes as there are rows.

    For eight rows of 300,000 values this is ten times as fast as a sort of each column.
    """
    if len(rows) > _FEW_ROWS:
        return list(np.sort(rows, axis=0))
    ordered = list(rows)
    for number in range(len(ordered)):
        for first in range(number % 2, len(ordered) - 1, 2):
            one, other = ordered[first : first + 2]
            ordered[first], ordered[first + 1] = np.minimum(one, other), np.maximum(one, other)
    return ordered


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
    ordered = np.sort(values)  # NaN sorts last; a whole sort is faster than a partition at three places
    last = len(values) - 1 - int(np.count_nonzero(np.isnan(values)))
    if last < 0:
        return np.nan, np.nan
    middle = ordered[last // 2]
    gaps = [(middle - ordered[last // part]) / quantile for part, quantile in _FAST_QUANTILES.items()]
    return float(middle), float(min(gaps))


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
    rows = flags.reshape(-1, flags.shape[-1])  # one row at a time is several times as fast as along an axis
    counts = np.array([[np.count_nonzero(row[group]) for group in groups] for row in rows], np.intp)
    return counts.reshape(*flags.shape[:-1], len(groups))


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
