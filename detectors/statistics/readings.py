"""Readings of a round as arrays, and robust statistics of each device's repeats. Pure; ``NaN``: no reading."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Readings = Mapping[DeviceId, Sequence[float]]
ReadingsByProbe = Readings | Mapping[DeviceId, Mapping[str, Sequence[float]]]

DEVIATION_PER_DISTANCE = np.float32(1.4826)  # a normal distribution's standard deviation over its median distance
# Expected gap between the median (of two: the mean) and the fastest of m standard normal samples, m from 0.
_MEDIAN_TO_FASTEST = np.array([np.nan, np.nan, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424])
_SHORTEST_S, _LONGEST_S = 1e-12, 1e12  # what is not in between is no time that something took
_FASTEST_NOISE = 0.75  # standard deviation of the fastest of three standard normal samples (of two 0.83, of five 0.67)


def as_array(repeats: Collection[Sequence[float]]) -> NDArray[np.float64]:
    """Return each device's repeats as a row, with ``NaN`` where a device has fewer than another."""
    seconds = np.array(list(zip_longest(*repeats, fillvalue=np.nan)), np.float64)
    return seconds.T.reshape(len(repeats), -1 if seconds.size else 0)


def arrays_by_probe(readings: ReadingsByProbe) -> list[NDArray[np.float64]]:
    """Return an array for each probe, as :func:`as_array` does; for one alone if the readings name none."""
    values: list[Any] = list(readings.values())
    if not any(isinstance(by_probe, Mapping) for by_probe in values):
        return [as_array(values)]
    probes = dict.fromkeys(chain.from_iterable(values))
    return [as_array([by_probe.get(probe, ()) for by_probe in values]) for probe in probes]


def repeats_of(seconds: NDArray[np.floating]) -> Floats:
    """Return a round's repeats, ``(n_devices, n_repeats)`` to ``(n_repeats, n_devices)``; infinite if not good."""
    with np.errstate(over="ignore"):  # beyond single precision is treated as infinite
        repeats = np.asarray(seconds.T, np.float32, order="C")
    return np.where((repeats > _SHORTEST_S) & (repeats < _LONGEST_S), repeats, np.float32(np.inf))


def log_fastest(repeats: Floats) -> Floats:
    """Return the log of each device's fastest repeat, ``(n_devices,)``; ``NaN`` if none is good."""
    # The fastest repeat is the least disturbed one: a disturbance can only add time.
    fastest = np.min(repeats, axis=0, initial=np.inf)
    return np.asarray(np.log(np.where(np.isinf(fastest), np.float32(np.nan), fastest)), np.float32)


def log_usual(repeats: Floats) -> Floats:
    """Return the log of each device's low median repeat, ``(n_devices,)``; ``NaN`` if none is good."""
    middle = np.maximum(np.count_nonzero(np.isfinite(repeats), axis=0) - 1, 0) // 2
    return log_fastest(np.take_along_axis(np.sort(repeats, axis=0), middle[None], axis=0))


def repeat_noise(repeats: Floats) -> Floats:
    """Estimate the standard deviation of a round's fastest log time from the fast half of its repeats."""
    # Slow outliers do not count. The result is `NaN` with fewer than two good repeats.
    if len(repeats) < 2:
        return np.full(repeats.shape[1:], np.nan, np.float32)
    ordered = np.sort(repeats, axis=0)
    count = np.count_nonzero(np.isfinite(ordered), axis=0)
    middle = np.take_along_axis(ordered, np.stack([np.maximum(count - 1, 0) // 2, count // 2]), axis=0)
    scale = _FASTEST_NOISE / _MEDIAN_TO_FASTEST[np.minimum(count, len(_MEDIAN_TO_FASTEST) - 1)]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.log(middle.sum(axis=0) / (2 * ordered[0])) * scale.astype(np.float32))
