"""Robust statistics of one round, by group, and the bet that turns exceedances into evidence.

Everything here is a pure function of arrays.  ``NaN`` marks a reading that is not there.
Arrays are ``(n_devices, n_probes)`` unless said otherwise; groups are index arrays into the first axis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Floats",
    "RollingMean",
    "bet",
    "center_and_spread",
    "log_fastest",
    "log_typical",
    "onset_weight",
    "repeat_noise",
]

Floats = NDArray[np.float32]

_GAUSS_Q10 = 1.2816  # minus the 10 % quantile of the standard normal
# Expected gap between the median (of two: the mean) and the fastest of m standard normal samples.
_MEDIAN_TO_FASTEST = {2: 0.564, 3: 0.846, 4: 1.029, 5: 1.163, 6: 1.267, 7: 1.352, 8: 1.424}
_FASTEST_NOISE = 0.75  # standard deviation of the fastest of three standard normal samples (of two 0.83, of five 0.67)
_SLOW_RATE = 0.8  # how often a slow device is taken to exceed, at least
_ONSET_POWER = 1.1
_ONSET_SUM = 10.5844484649508  # the Riemann zeta function at 1.1


def log_fastest(seconds: NDArray[np.floating]) -> tuple[Floats, NDArray[np.intp]]:
    """Return the log of each device's fastest good repeat, and how many repeats of a device were bad.

    The fastest repeat is the least disturbed one [1]_: a disturbance can only add time.

    Parameters
    ----------
    seconds
        Shape ``(n_devices, n_probes, n_repeats)``; ``NaN`` where there is no reading.

    Returns
    -------
    log_seconds
        Shape ``(n_devices, n_probes)``, ``NaN`` without a single good repeat.
    bad
        Shape ``(n_devices,)``: readings that were zero, negative or infinite.

    References
    ----------
    .. [1] Chen and Revels, "Robust benchmarking in noisy environments", 2016.
    """
    good = (seconds > 0) & (seconds < np.inf)
    if good.all():
        return np.log(seconds.min(axis=2)).astype(np.float32), np.zeros(len(seconds), np.intp)
    bad = np.count_nonzero(~good & ~np.isnan(seconds), axis=(1, 2))
    fastest = np.where(good, seconds, np.inf).min(axis=2)
    return np.log(np.where(np.isfinite(fastest), fastest, np.nan)).astype(np.float32), bad


def log_typical(seconds: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return the median of each device's log time over a window of samples, and the samples' standard deviation.

    Both ``(n_devices, n_probes)``; the median stands against disturbed samples on either side.
    """
    good = (seconds > 0) & (seconds < np.inf)
    counts = np.count_nonzero(good, axis=2)
    logs = np.sort(np.log(np.where(good, seconds, np.nan)), axis=2)  # NaN sorts last
    low, high = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, seconds.shape[2] - 1)
    middle = np.take_along_axis(logs, np.stack([low, high], axis=2), axis=2).mean(axis=2)
    noise = np.where(counts > 1, np.sqrt(np.mean((logs - middle[:, :, None]) ** 2, axis=2, where=good)), np.nan)
    return middle.astype(np.float32), noise.astype(np.float32)


def repeat_noise(seconds: NDArray[np.floating]) -> Floats:
    """Return the standard deviation of a round's fastest log time, from the repeats' fast half (spikes do not count).

    Shape ``(n_devices, n_probes, n_repeats)`` to ``(n_devices, n_probes)``; ``NaN`` with fewer than two good repeats.
    """
    repeats = seconds.shape[2]
    if repeats < 2:
        return np.full(seconds.shape[:2], np.nan, np.float32)
    ordered = np.sort(np.where((seconds > 0) & (seconds < np.inf), seconds, np.nan), axis=2)
    fastest = ordered[:, :, 0]
    middle = 0.5 * (ordered[:, :, (repeats - 1) // 2] + ordered[:, :, repeats // 2])
    scale = _MEDIAN_TO_FASTEST.get(repeats, _MEDIAN_TO_FASTEST[8])
    return np.asarray(np.log(middle / fastest) * (_FASTEST_NOISE / scale), np.float32)


def center_and_spread(values: Floats, groups: Sequence[NDArray[np.intp] | slice]) -> tuple[Floats, Floats]:
    """Return the low median of each group and probe, and its standard deviation as seen from its fast half.

    The low median is the faster of the two middle values: with half the devices slow, it is still a good device's.
    The fast half (median less the 10 % quantile, over that of the normal law) is not widened by a slow minority, as a
    two-sided scale is (masking).

    Returns
    -------
    center, spread
        Each ``(n_groups, n_probes)``; ``NaN`` for a group without readings.
    """
    found = np.stack([_order_statistics(values[rows], (0.1, 0.5)) for rows in groups])
    return found[:, 1], (found[:, 1] - found[:, 0]) / _GAUSS_Q10


def _order_statistics(values: Floats, quantiles: tuple[float, ...]) -> Floats:
    """Return lower quantiles of each column over its finite values, ``(n_quantiles, n_columns)``."""
    columns = []
    for column in np.ascontiguousarray(values.T):
        count = int(np.count_nonzero(~np.isnan(column)))
        if not count:
            columns.append(np.full(len(quantiles), np.nan, np.float32))
            continue
        ranks = [int(quantile * (count - 1)) for quantile in quantiles]
        columns.append(np.partition(column, ranks)[ranks])  # NaN sorts last
    return np.stack(columns, axis=1)


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
    return np.where(exceeds, slow_rate / rate, (1 - slow_rate) / (1 - rate)).astype(np.float32, copy=False)


class RollingMean:
    """Mean of the last rounds' values: of few devices, one round's scale is mostly chance."""

    def __init__(self, rounds: int) -> None:
        self._last: deque[Floats] = deque(maxlen=rounds)

    def add(self, values: Floats) -> None:
        """Take one round's values; ``NaN`` counts as zero."""
        self._last.append(np.nan_to_num(values))

    def mean(self) -> Floats:
        """Return the mean, of the same shape as the values."""
        return np.asarray(np.mean(self._last, axis=0), np.float32)
