"""Aggregators by OpenTSDB's names: how each combines values, and treats missing ones.

https://opentsdb.net/docs/build/html/user_guide/query/aggregators.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from laggard.kvstore.series.timeseries import Floats
from laggard.telemetry.errors import BadQueryError


class Gaps(Enum):
    """The value of a series at a time between its first and last point for which it has none."""

    INTERPOLATE = "the straight line between its neighbours"
    SKIP = "nothing"
    PREVIOUS = "its last value"


@dataclass(frozen=True, slots=True)
class Aggregator:
    """One way to combine several values into one."""

    name: str
    gaps: Gaps  # the value of a series that lacks a point
    # Reduces `(n_series, n_times)`, with NaN for missing values, to `(n_times,)`; NaN if all are missing
    reduce: Callable[[Floats], Floats]
    mergeable: bool = False  # whether it can be computed from the sums, counts, extremes and variances of parts

    @property
    def keeps_one(self) -> bool:
        """Whether the aggregate of a single value is that value."""
        return self.name not in {"count", "dev", "diff", "squareSum"}


def aggregator(name: str) -> Aggregator:
    """Return an aggregator by its name."""
    if name not in AGGREGATORS:
        raise BadQueryError(f"unknown aggregator {name[:80]!r}: GET /api/aggregators lists them")
    return AGGREGATORS[name]


def _count(matrix: Floats) -> Floats:
    result: Floats = (~np.isnan(matrix)).sum(axis=0).astype(np.float64)
    return result


def _or_nan(matrix: Floats, result: Floats) -> Floats:
    return np.where(np.isnan(matrix).all(axis=0), np.nan, result)


def _sum(matrix: Floats) -> Floats:
    return _or_nan(matrix, np.nansum(matrix, axis=0))


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


def _product(matrix: Floats) -> Floats:
    return _or_nan(matrix, np.nanprod(matrix, axis=0))


def _squares(matrix: Floats) -> Floats:
    return _sum(matrix**2)


def _first(matrix: Floats) -> Floats:
    there = ~np.isnan(matrix)
    result: Floats = np.take_along_axis(matrix, there.argmax(axis=0)[None, :], axis=0)[0]
    return result


def _last(matrix: Floats) -> Floats:
    return _first(matrix[::-1])


def _difference(matrix: Floats) -> Floats:
    return _last(matrix) - _first(matrix)


def _median(matrix: Floats) -> Floats:
    """Return element n/2 of the sorted values: the upper one of two middle values."""
    ranked = np.sort(matrix, axis=0)
    middle = (_count(matrix) // 2).astype(np.intp).clip(max=len(ranked) - 1)
    result: Floats = np.take_along_axis(ranked, middle[None, :], axis=0)[0]
    return result


Position = Callable[[float, Floats], Floats]
"""Returns the position of a quantile among n ranked values, counted from 1."""


def _legacy_position(quantile: float, n: Floats) -> Floats:
    return quantile * (n + 1)


def _r3_position(quantile: float, n: Floats) -> Floats:
    return np.rint(quantile * n)


def _r7_position(quantile: float, n: Floats) -> Floats:
    return 1 + (n - 1) * quantile


def _percentile(quantile: float, position: Position) -> Callable[[Floats], Floats]:
    """Return an estimator of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), by its position."""

    def reduce(matrix: Floats) -> Floats:
        ranked, n = np.sort(matrix, axis=0), _count(matrix)
        at = np.clip(position(quantile, n), 1, np.maximum(n, 1))
        below = np.floor(at).astype(np.intp)
        low = np.take_along_axis(ranked, below[None, :] - 1, axis=0)[0]
        high = np.take_along_axis(ranked, np.minimum(below, np.maximum(n, 1).astype(np.intp) - 1)[None, :], axis=0)[0]
        result: Floats = low + (at - below) * (high - low)
        return result

    return reduce


def _percentiles() -> dict[str, Callable[[Floats], Floats]]:
    reducers = {}
    for digits in ("05", "50", "75", "90", "95", "99", "999"):  # OpenTSDB has no lower ones, and the page draws a band
        quantile = float(f"0.{digits}")
        reducers[f"p{digits}"] = _percentile(quantile, _legacy_position)
        reducers[f"ep{digits}r3"] = _percentile(quantile, _r3_position)
        reducers[f"ep{digits}r7"] = _percentile(quantile, _r7_position)
    return reducers


def _table() -> Mapping[str, Aggregator]:
    line, skip = Gaps.INTERPOLATE, Gaps.SKIP
    mergeable = [
        Aggregator("sum", line, _sum, mergeable=True),
        Aggregator("min", line, _low, mergeable=True),
        Aggregator("max", line, _high, mergeable=True),
        Aggregator("avg", line, _average, mergeable=True),
        Aggregator("dev", line, _deviation, mergeable=True),
        Aggregator("count", skip, _count, mergeable=True),
        Aggregator("zimsum", skip, _sum, mergeable=True),
        Aggregator("mimmin", skip, _low, mergeable=True),
        Aggregator("mimmax", skip, _high, mergeable=True),
        Aggregator("pfsum", Gaps.PREVIOUS, _sum, mergeable=True),
    ]
    whole = [
        Aggregator("squareSum", skip, _squares),
        Aggregator("median", line, _median),
        Aggregator("mult", line, _product),
        Aggregator("diff", line, _difference),
        Aggregator("first", skip, _first),
        Aggregator("last", skip, _last),
        Aggregator("none", skip, _last),
        *(Aggregator(name, line, reduce) for name, reduce in _percentiles().items()),
    ]
    return {each.name: each for each in sorted([*mergeable, *whole], key=lambda each: _natural(each.name))}


def _natural(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


AGGREGATORS: Mapping[str, Aggregator] = _table()
