"""Robust statistics of one round, by group, and the bets that turn exceedances into evidence.

Pure functions of arrays whose last axis is the device; ``NaN`` marks a missing reading.  A group is an index of its
devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Group = NDArray[np.intp] | slice

_FAST_SHARES = (10, 5)  # the fastest device in so many
# Expected gap between the median (of two: the mean) and the fastest of m standard normal samples, m from 0.
_MEDIAN_TO_FASTEST = np.array([np.nan, np.nan, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424])
_FASTEST_NOISE = 0.75  # standard deviation of the fastest of three standard normal samples (of two 0.83, of five 0.67)
_SLOW_RATE = 0.8  # a slow device is assumed to exceed at least this often
_ONSET_POWER = 1.1
_SUM_OF_ONSET_POWERS = 10.584448464950803  # of n**-1.1 over n = 1, 2, ...: Riemann's zeta function


def repeats_of(seconds: NDArray[np.floating]) -> Floats:
    """Return a round's repeats, ``(n_devices, n_repeats)`` to ``(n_repeats, n_devices)``; infinite if not good."""
    with np.errstate(over="ignore"):  # beyond single precision is treated as infinite
        repeats = np.asarray(seconds.T, np.float32, order="C")
    if not (repeats.min(initial=np.inf) > 0 and repeats.max(initial=0) < np.inf):  # NaN fails both
        repeats = np.where((repeats > 0) & (repeats < np.inf), repeats, np.float32(np.inf))
    return repeats


def log_fastest(repeats: Floats) -> Floats:
    """Return the log of each device's fastest repeat, ``(n_devices,)``; ``NaN`` if none is good."""
    # The fastest repeat is the least disturbed one [1]_: a disturbance can only add time.
    fastest = np.min(repeats, axis=0, initial=np.inf)
    return np.asarray(np.log(np.where(np.isinf(fastest), np.float32(np.nan), fastest)), np.float32)


def log_usual(repeats: Floats) -> Floats:
    """Return the log of each device's low median repeat, ``(n_devices,)``; ``NaN`` if none is good."""
    middle = np.maximum(np.count_nonzero(np.isfinite(repeats), axis=0) - 1, 0) // 2
    usual = np.take_along_axis(np.sort(repeats, axis=0), middle[None], axis=0)
    return log_fastest(usual)


def repeat_noise(repeats: Floats) -> Floats:
    """Estimate the standard deviation of a round's fastest log time from the fast half of its repeats."""
    # Slow outliers do not count. The result is `NaN` with fewer than two good repeats.
    ordered = np.sort(repeats, axis=0)
    noise = np.full(repeats.shape[1:], np.nan, np.float32)
    left = np.ones(noise.shape, np.bool_)
    for count in range(len(ordered), 1, -1):
        here = left & np.isfinite(ordered[count - 1])
        left &= ~here
        which = slice(None) if here.all() else here  # avoids copies if all repeats are good
        fastest, *middle = (ordered[rank][which] for rank in (0, (count - 1) // 2, count // 2))
        scale = _FASTEST_NOISE / _MEDIAN_TO_FASTEST[min(count, len(_MEDIAN_TO_FASTEST) - 1)]
        noise[which] = np.log((middle[0] + middle[1]) / (2 * fastest)) * np.float32(scale)
        if not left.any():
            break
    return noise


def median_and_deviation(rows: Floats) -> tuple[Floats, Floats]:
    """Return the median along the first axis, and the standard deviation estimated from the median distance to it."""
    usual = np.median(rows, axis=0)
    return usual, np.float32(deviation_per_distance()) * np.median(np.abs(rows - usual), axis=0)


def center_and_spread(values: Floats, groups: Sequence[Group]) -> tuple[Floats, Floats]:
    """Return the low median of each group, and the standard deviation estimated from its fast half."""
    # The low median is the faster of the two middle values: with half the devices slow, it is still that of a good
    # device. The spread is the median minus the 10 % or the 20 % quantile, whichever gives less, divided by that of the
    # normal distribution. Unlike a two-sided scale, it is not widened by a slow minority (masking), nor by a single
    # fast device.
    center, spread = np.array([_center_and_spread(values[group]) for group in groups], np.float32).T
    return center, spread


def _center_and_spread(values: Floats) -> tuple[float, float]:
    if not len(values):
        return np.nan, np.nan
    last = max(len(values) - 1 - int(np.count_nonzero(np.isnan(values))), 0)
    ordered = np.sort(values)  # NaN sorts last; a full sort is faster than a partition at three positions
    middle, fast = ordered[last // 2], ordered[[last // part for part in _FAST_SHARES]]
    scales = np.array([-_normal_quantile(1 / part) for part in _FAST_SHARES], np.float32)
    return middle, ((middle - fast) / scales).min()


def high_median(values: Floats, groups: Sequence[Group]) -> Floats:
    """Return the greater of the two middle values of each group."""
    return np.array([_middle(values[group], 0) for group in groups], np.float32)


def low_median(values: Floats, groups: Sequence[Group]) -> Floats:
    """Return the smaller of the two middle values of each group."""
    return np.array([_middle(values[group], 1) for group in groups], np.float32)


def _middle(values: Floats, lower: int) -> float:
    there = values[~np.isnan(values)]
    rank = (len(there) - lower) // 2
    return float(np.partition(there, rank)[rank]) if len(there) else np.nan


def count_of(flags: NDArray[np.bool_], groups: Sequence[Group]) -> NDArray[np.intp]:
    """Count the true flags of each group."""
    return np.array([np.count_nonzero(flags[group]) for group in groups], np.intp)


def onset_weight(round_number: int) -> float:
    """Return the share of the false-alarm budget spent on slowdowns that begin in this round (1, 2, ...)."""
    # The shares sum to one over an endless run and fall slowly: round 1,000 costs 7.6 nats more than round 1.
    return float(round_number**-_ONSET_POWER / _SUM_OF_ONSET_POWERS)


def deviation_per_distance() -> float:
    """Return the standard deviation of a normal distribution over its median absolute deviation: 1.4826."""
    return 1 / _normal_quantile(0.75)


@cache
def _normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def bet_on_one(rate: Floats) -> Floats:
    """Return the factor by which an exceedance multiplies the evidence."""
    # Together with bet_on_none this is a likelihood ratio of two coins: `rate`, the largest probability with which a
    # healthy device exceeds, against 0.8 (or half-way from `rate` to 1). Its mean is at most 1 as long as the
    # probability of exceeding is at most `rate`.
    return np.asarray(np.maximum(np.float32(_SLOW_RATE), (1 + rate) / 2) / rate)


def bet_on_none(rate: Floats) -> Floats:
    """Return the factor by which a reading within its limit multiplies the evidence; see :func:`bet_on_one`."""
    return np.asarray(np.minimum(np.float32(1 - _SLOW_RATE) / (1 - rate), np.float32(0.5)))


class RollingMean:
    """Mean of the last rounds' values: with few devices, a single round's scale is mostly chance."""

    def __init__(self, rounds: int) -> None:
        self._last: deque[Floats] = deque(maxlen=rounds)

    def add(self, values: Floats) -> None:
        """Add one round's values; ``NaN`` is skipped."""
        self._last.append(values)

    def mean(self) -> Floats:
        """Return the mean, in the shape of the values; ``NaN`` where there were none."""
        stacked = np.stack(self._last)
        count = np.count_nonzero(~np.isnan(stacked), axis=0)
        return np.where(count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), np.nan).astype(np.float32)
