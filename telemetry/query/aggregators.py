"""Aggregators by OpenTSDB's names: how each combines values, and treats missing ones.

https://opentsdb.net/docs/build/html/user_guide/query/aggregators.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from laggard.kvstore.series.timeseries import Floats
from laggard.telemetry.errors import BadQueryError

# Aggregators that differ from others only in how they merge series with gaps.
_WITHIN_A_SERIES = {"zimsum": "sum", "mimmin": "min", "mimmax": "max", "none": "last"}
# OpenTSDB has no 5th percentile, and the page draws a band.
_PERCENTILES = ("05", "50", "75", "90", "95", "99", "999")


@dataclass(frozen=True, slots=True)
class Aggregator:
    """One way to combine several values into one."""

    name: str
    # Reduces `(n_series, n_times)`, with NaN for missing values, to `(n_times,)`; NaN if all are missing
    reduce: Callable[[Floats], Floats]
    # Whether a series that lacks a point has that on the straight line between its neighbours there; else it has none
    interpolates: bool = True

    @property
    def keeps_one(self) -> bool:
        """Whether the aggregate of a single value is that value."""
        return self.name not in {"count", "dev"}

    @property
    def of_one_series(self) -> str:
        """The name of the aggregator that does the same with values of one series."""
        return _WITHIN_A_SERIES.get(self.name, self.name)


def aggregator(name: str) -> Aggregator:
    """Return an aggregator by its name."""
    if name not in AGGREGATORS:
        raise BadQueryError(f"unknown aggregator {name[:80]!r}: GET /api/aggregators lists them")
    return AGGREGATORS[name]


def _count(matrix: Floats) -> Floats:
    result: Floats = (~np.isnan(matrix)).sum(axis=0).astype(np.float64)
    return result


def _sum(matrix: Floats) -> Floats:
    return np.where(np.isnan(matrix).all(axis=0), np.nan, np.nansum(matrix, axis=0))


def _average(matrix: Floats) -> Floats:
    return _sum(matrix) / np.maximum(_count(matrix), 1)


def _deviation(matrix: Floats) -> Floats:
    return np.sqrt(_average((matrix - _average(matrix)) ** 2))


def _low(matrix: Floats) -> Floats:
    result: Floats = np.fmin.reduce(matrix, axis=0)
    return result


def _high(matrix: Floats) -> Floats:
    result: Floats = np.fmax.reduce(matrix, axis=0)
    return result


def _last(matrix: Floats) -> Floats:
    newest_first = matrix[::-1]
    place = (~np.isnan(newest_first)).argmax(axis=0)
    result: Floats = np.take_along_axis(newest_first, place[None, :], axis=0)[0]
    return result


def _median(matrix: Floats) -> Floats:
    """Return element n/2 of the sorted values: the upper one of two middle values."""
    ranked = np.sort(matrix, axis=0)
    middle = (_count(matrix) // 2).astype(np.intp)
    result: Floats = np.take_along_axis(ranked, middle[None, :], axis=0)[0]
    return result


def _percentile(quantile: float) -> Callable[[Floats], Floats]:
    """Return the sixth estimator of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996)."""

    def reduce(matrix: Floats) -> Floats:
        ranked, n = np.sort(matrix, axis=0), _count(matrix)
        at = np.clip(quantile * (n + 1), 1, np.maximum(n, 1))  # counted from 1
        below = np.floor(at).astype(np.intp)
        low = np.take_along_axis(ranked, below[None, :] - 1, axis=0)[0]
        high = np.take_along_axis(ranked, np.minimum(below, np.maximum(n, 1).astype(np.intp) - 1)[None, :], axis=0)[0]
        result: Floats = low + (at - below) * (high - low)
        return result

    return reduce


_EVERY = (
    Aggregator("sum", _sum),
    Aggregator("min", _low),
    Aggregator("max", _high),
    Aggregator("avg", _average),
    Aggregator("dev", _deviation),
    Aggregator("median", _median),
    Aggregator("count", _count, interpolates=False),
    Aggregator("zimsum", _sum, interpolates=False),
    Aggregator("mimmin", _low, interpolates=False),
    Aggregator("mimmax", _high, interpolates=False),
    Aggregator("last", _last, interpolates=False),
    Aggregator("none", _last, interpolates=False),
    *(Aggregator(f"p{digits}", _percentile(float(f"0.{digits}"))) for digits in _PERCENTILES),
)
AGGREGATORS: Mapping[str, Aggregator] = {each.name: each for each in _EVERY}
