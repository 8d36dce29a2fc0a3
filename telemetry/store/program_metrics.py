"""The program's own metrics on one node, for the job's record: how many series each has, and their range over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from laggard.kvstore.series.timeseries import Floats
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.page.content import metrics_of
from laggard.telemetry.query.downsampling import Downsample, buckets
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.parsing import series_query
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.history import History

STEP_S = 1
COLUMNS = ("count", "total", "low", "high")
"""Of the averages of all series in each second: their number, sum, minimum and maximum."""


def answer_program(history: History, question: Mapping[str, Any]) -> Value:
    """Return the numbers of series of the program's metrics, and the ranges of those that the question names."""
    # A range has COLUMNS, each with one value for each second from `start_us` to `end_us`, both inclusive.
    keys = history.series_keys()
    names = {each["name"] for each in metrics_of(keys) if each["kind"] == "program"}
    span = Span(question["start_us"], question["end_us"])
    return {
        "n_series": dict(Counter(metric for metric, _ in keys if metric in names)),
        "ranges": {name: _range_of(history, name, span) for name in question["metrics"] if name in names},
    }


def merged_ranges(ranges: Collection[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Return one range for the same seconds on several nodes."""
    how: dict[str, np.ufunc] = {"count": np.add, "total": np.add, "low": np.minimum, "high": np.maximum}
    return {name: fold.reduce([each[name] for each in ranges]) for name, fold in how.items()}


def _range_of(history: History, metric: str, span: Span) -> dict[str, Floats]:
    query = series_query(metric, f"{STEP_S}s-avg")
    starts = buckets(Downsample(STEP_S * SECOND_US, "avg"), span.start_us, span.end_us)
    count, total = np.zeros(len(starts)), np.zeros(len(starts))
    low, high = np.full(len(starts), np.inf), np.full(len(starts), -np.inf)
    for each in history.downsampled(query, span).series:
        at = starts.searchsorted(each.times_us)
        count[at] += 1
        total[at] += each.values
        low[at] = np.minimum(low[at], each.values)
        high[at] = np.maximum(high[at], each.values)
    return dict(zip(COLUMNS, (count, total, low, high), strict=True))
