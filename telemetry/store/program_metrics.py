"""One node's part of what a job's record keeps of the program's metrics and of the nodes' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from laggard.kvstore.series.timeseries import Floats, TimeSeries
from laggard.telemetry.page.content import metrics_of
from laggard.telemetry.query.downsampling import Downsample, buckets
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.parsing import series_query
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.history import History

STEP_S = 1
COLUMNS = ("count", "total", "low", "high")
"""Of the averages of all series in each second: their number, sum, minimum and maximum."""
OF_NODES = ("cpu_percent", "used_RAM", "network_receive", "network_transmit")
"""The metrics of the nodes that a record has."""
MAX_LINES = 2_048


def answer_program(history: History, question: Mapping[str, Any]) -> tuple[dict[str, Any], list[TimeSeries]]:
    """Return how many series each metric has, the ranges of those that are named, and the series of some of them."""
    # A range has COLUMNS, each with one value for each second from `start_us` to `end_us`, both inclusive.
    keys = history.series_keys()
    of_nodes = {*OF_NODES} & {*question["metrics"]}
    names = {each["name"] for each in metrics_of(keys) if each["kind"] == "program" or each["name"] in of_nodes}
    n_series = dict(Counter(metric for metric, _ in keys if metric in names))
    span = Span(question["start_us"], question["end_us"])
    found = {
        name: history.downsampled(series_query(name, f"{STEP_S}s-avg"), span).series
        for name in question["metrics"]
        if name in names
    }
    ranges = {name: _range_of(series, span) for name, series in found.items()}
    whole = with_lines({name: n_series[name] for name in found if name in question["lines"]})
    return {"n_series": n_series, "ranges": ranges}, [each for name in whole for each in found[name]]


def with_lines(n_series: Mapping[str, int]) -> list[str]:
    """Return of which metrics every series is kept, given their numbers: the first ones, as long as there is room."""
    found, total = [], 0
    for metric, number in n_series.items():
        if total + number <= MAX_LINES:
            found.append(metric)
            total += number
    return found


def merged_ranges(ranges: Collection[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Return one range for the same seconds on several nodes."""
    how: dict[str, np.ufunc] = {"count": np.add, "total": np.add, "low": np.minimum, "high": np.maximum}
    return {name: fold.reduce([each[name] for each in ranges]) for name, fold in how.items()}


def _range_of(series: Iterable[TimeSeries], span: Span) -> dict[str, Floats]:
    starts = buckets(Downsample(STEP_S * SECOND_US, "avg"), span.start_us, span.end_us)
    count, total = np.zeros(len(starts)), np.zeros(len(starts))
    low, high = np.full(len(starts), np.inf), np.full(len(starts), -np.inf)
    for each in series:
        at = starts.searchsorted(each.times_us)
        count[at] += 1
        total[at] += each.values
        low[at] = np.minimum(low[at], each.values)
        high[at] = np.maximum(high[at], each.values)
    return dict(zip(COLUMNS, (count, total, low, high), strict=True))
