"""The program's own metrics on one node, for the job's record: how many series each has, and their range over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from laggard.kvstore.series.timeseries import Floats
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.page.content import metrics_of
from laggard.telemetry.query.engine import Span, parts_of
from laggard.telemetry.query.merging import Partial
from laggard.telemetry.query.parsing import sub_query_from_json
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
    # This aggregator fills no gaps, and has one part.
    query = sub_query_from_json({"metric": [metric], "aggregator": "mimmin", "downsample": f"{STEP_S}s-avg"}, 0)
    parts = parts_of(query, span, history.downsampled(query, span).series)
    n_seconds = (span.end_us - span.start_us) // (STEP_S * 1_000_000) + 1
    partial = parts[0].partial if parts else Partial.empty(n_seconds)
    return {name: getattr(partial, name) for name in COLUMNS}
