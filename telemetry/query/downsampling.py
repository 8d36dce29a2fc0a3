"""Downsampling: ``<interval>-<function>[-<fill>]``, one value for each bucket of time.

https://opentsdb.net/docs/build/html/user_guide/query/downsampling.html
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.errors import BadQueryError, QueryTooLargeError
from laggard.telemetry.query.aggregators import AGGREGATORS, aggregator
from laggard.telemetry.query.times import SECOND_US, parse_duration

MAX_BUCKETS = 200_000
_MAX_CELLS = 2_000_000
# What clients send if their user has not chosen anything.
_UNCHOSEN = {"", "undefined"}
_FILLS = {"none": None, "nan": float("nan"), "null": float("nan"), "zero": 0.0}


@dataclass(frozen=True, slots=True)
class Downsample:
    """How to downsample a series."""

    interval_us: int  # length of a bucket in microseconds
    function: str
    fill: float | None = None  # value of an empty bucket; NaN: it is shown as missing; None: it is left out

    @property
    def is_whole_seconds(self) -> bool:
        """Whether all buckets begin at whole seconds."""
        return self.interval_us % SECOND_US == 0


def parse_downsample(text: str) -> Downsample | None:
    """Parse a specification such as ``30s-avg`` or ``1m-max-zero``; None if it is empty."""
    if not text:
        return None
    interval, *parts = text.split("-")
    if len(parts) > 2:
        raise BadQueryError(f"the downsampling {text[:80]!r} has more than three parts")
    function, fill = (*parts, "", "")[:2]
    function = "avg" if function in _UNCHOSEN else function
    if function == "none" or function not in AGGREGATORS:
        raise BadQueryError(f"{function[:80]!r} is not a downsampling function, in {text[:80]!r}")
    return Downsample(parse_duration(interval), aggregator(function).of_one_series, _parse_fill(fill, text))


def _parse_fill(name: str, text: str) -> float | None:
    if name in _UNCHOSEN:
        return None
    if name in _FILLS:
        return _FILLS[name]
    raise BadQueryError(f"unknown fill policy {name[:80]!r} in {text[:80]!r}: use {', '.join(_FILLS)}")


def buckets(spec: Downsample, start_us: int, end_us: int) -> Times:
    """Return the start times of the buckets that cover ``start_us`` to ``end_us``."""
    if (end_us - start_us) // spec.interval_us > MAX_BUCKETS:
        raise QueryTooLargeError(f"more than {MAX_BUCKETS} intervals: ask for a longer interval or a shorter range")
    first = start_us - start_us % spec.interval_us
    return np.arange(first, end_us + 1, spec.interval_us, dtype=np.int64)


def downsample(spec: Downsample, starts: Times, times_us: Times, values: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Combine the values of each bucket that has any."""
    if len(times_us) == 0:
        return np.empty(0, dtype=np.intp), np.empty(0)
    bucket = np.searchsorted(starts, times_us, side="right") - 1
    begins = np.flatnonzero(np.diff(bucket, prepend=-1))
    return bucket[begins], reduce_runs(spec.function, values, begins)


def reduce_runs(function: str, values: Floats, begins: NDArray[np.intp]) -> Floats:
    """Combine each run of values to one; ``begins`` says where each run begins."""
    if len(begins) == len(values) and aggregator(function).keeps_one:
        return values
    if function in _BY_SEGMENT:
        return _BY_SEGMENT[function](values, begins)
    ends = np.append(begins[1:], len(values))
    longest = int((ends - begins).max())
    at_once = max(1, _MAX_CELLS // longest)
    parts = [
        _reduce_columns(function, values, begins[start : start + at_once], ends[start : start + at_once])
        for start in range(0, len(begins), at_once)
    ]
    return np.concatenate(parts)


def _reduce_columns(function: str, values: Floats, begins: NDArray[np.intp], ends: NDArray[np.intp]) -> Floats:
    """Write each segment into a column, padded to the longest, and reduce each column to one value."""
    lengths = ends - begins
    matrix = np.full((int(lengths.max()), len(begins)), np.nan)
    column = np.repeat(np.arange(len(begins)), lengths)
    row = np.arange(begins[0], ends[-1]) - np.repeat(begins, lengths)
    matrix[row, column] = values[begins[0] : ends[-1]]
    return aggregator(function).reduce(matrix)


def _counts(values: Floats, begins: NDArray[np.intp]) -> Floats:
    counts: Floats = np.diff(begins, append=len(values)).astype(np.float64)
    return counts


def _lasts(values: Floats, begins: NDArray[np.intp]) -> Floats:
    lasts: Floats = values[np.append(begins[1:], len(values)) - 1]
    return lasts


_BY_SEGMENT: dict[str, Callable[[Floats, NDArray[np.intp]], Floats]] = {
    "sum": np.add.reduceat,
    "min": np.minimum.reduceat,
    "max": np.maximum.reduceat,
    "avg": lambda values, begins: np.add.reduceat(values, begins) / _counts(values, begins),
    "count": _counts,
    "last": _lasts,
}
