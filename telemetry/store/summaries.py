"""Summaries of samples: for each series and each bucket of time their number, sum, extremes and last value.

Summaries add up: those of any parts of the samples, in any order and with buckets that are split over several rows,
give the same as those of all samples at once. The time of the last sample belongs to them, because samples of one
bucket may arrive in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.query.downsampling import reduce_runs

Summaries: TypeAlias = dict[str, NDArray[Any]]
"""Columns of the same length: number of the series, start of the bucket and time of its last sample as Unix time in
microseconds, number of samples (as a float), their sum, minimum, maximum and last value. Columns that nobody needs may
be missing."""

COLUMNS = ("series", "start_us", "count", "sum", "min", "max", "last_us", "last")
_INTEGERS = {"series", "start_us", "last_us"}
EXACT = frozenset({"count", "sum", "min", "max", "avg", "last"})
"""Downsampling functions that summaries give exactly."""
_FOLDS: dict[str, np.ufunc] = {"count": np.add, "sum": np.add, "min": np.minimum, "max": np.maximum}
_NEEDED = {**{name: (name,) for name in ("count", "sum", "min", "max")}, "last": ("last_us", "last")}


def columns_for(function: str) -> tuple[str, ...]:
    """Return the columns from which a downsampling function is computed."""
    return ("series", "start_us", *_NEEDED.get(function, ("count", "sum")))


def n_rows(rows: Summaries) -> int:
    """Return the number of rows."""
    return len(rows["series"])


def empty(columns: Sequence[str] = COLUMNS) -> Summaries:
    """Return no rows."""
    return {name: np.empty(0, dtype=np.int64 if name in _INTEGERS else np.float64) for name in columns}


def of_samples(series: NDArray[np.int64], times_us: Times, values: Floats) -> Summaries:
    """Return a row for each sample that is finite, as if its bucket had no length."""
    finite = np.isfinite(values)
    if not finite.all():
        series, times_us, values = series[finite], times_us[finite], values[finite]
    same = dict.fromkeys(("sum", "min", "max", "last"), values)
    return {"series": series, "start_us": times_us, "last_us": times_us, "count": np.ones(len(values)), **same}


def where(rows: Summaries, kept: NDArray[Any] | slice) -> Summaries:
    """Return some of the rows, by a mask or by their places."""
    return {name: column[kept] for name, column in rows.items()}


def concatenated(parts: Sequence[Summaries], columns: Sequence[str] = COLUMNS) -> Summaries:
    """Return the rows of several tables, one after the other."""
    if len(parts) == 1:
        return {name: parts[0][name] for name in columns}
    return {name: np.concatenate([part[name] for part in parts]) for name in columns} if parts else empty(columns)


def by_series_and_time(rows: Summaries) -> Summaries:
    """Return the rows sorted by series and last sample; of equal ones, the later one stays behind the earlier one."""
    if _is_sorted(rows):
        return rows
    rows = where(rows, np.argsort(rows["series"], kind="stable"))
    if _is_sorted(rows):  # mostly, since parts come in the order of time
        return rows
    return where(rows, np.lexsort((_last_us(rows), rows["series"])))


def _is_sorted(rows: Summaries) -> bool:
    series, last_us = rows["series"], _last_us(rows)
    is_next = series[1:] > series[:-1]
    return bool((is_next | ((series[1:] == series[:-1]) & (last_us[1:] >= last_us[:-1]))).all())


def _last_us(rows: Summaries) -> Times:
    """Return the times of the last samples, or the starts of the buckets if there are none."""
    return rows.get("last_us", rows["start_us"])


@np.errstate(over="ignore", invalid="ignore")
def merged(rows: Summaries, width_us: int) -> Summaries:
    """Return one row for each series and bucket of a width, sorted by both; it is a multiple of the rows' own width."""
    rows = by_series_and_time(rows)
    starts = rows["start_us"] - rows["start_us"] % width_us
    rows = {**rows, "start_us": starts}
    series = rows["series"]
    new = np.append(True, (starts[1:] != starts[:-1]) | (series[1:] != series[:-1]))
    if new.all():
        return rows
    begins = np.flatnonzero(new)
    ends = np.append(begins[1:], len(starts)) - 1
    first = {"series": series[begins], "start_us": starts[begins]}
    folded = {name: fold.reduceat(rows[name], begins) for name, fold in _FOLDS.items() if name in rows}
    return {**first, **folded, **{name: rows[name][ends] for name in ("last_us", "last") if name in rows}}


@np.errstate(over="ignore", invalid="ignore")
def reduced(function: str, rows: Summaries, begins: NDArray[np.intp]) -> Floats:
    """Return the value of a downsampling function for each run of rows, which are sorted by series and time."""
    # Those that summaries do not give exactly (EXACT) are computed from the averages of the rows.
    if function == "avg":
        return np.add.reduceat(rows["sum"], begins) / np.add.reduceat(rows["count"], begins)
    if function == "count":
        return np.add.reduceat(rows["count"], begins)
    column = _NEEDED.get(function, ("",))[-1]
    return reduce_runs(function, rows[column] if column else rows["sum"] / rows["count"], begins)
