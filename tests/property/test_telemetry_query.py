"""The query engine against an obvious slow one, with and without downsampling first."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.telemetry.query import BadQueryError, TimeSeries, evaluate, query_from_json
from laggard.telemetry.query.aggregators import AGGREGATORS
from laggard.telemetry.query.engine import Span, downsample_series

START_S, END_S = 1_000_000_000, 1_000_000_120

points = st.dictionaries(
    st.integers(START_S * 10, END_S * 10), st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=30
)


def make(tags: dict[str, str], samples: dict[int, float]) -> TimeSeries:
    times = sorted(samples)
    return TimeSeries("m", tags, np.array(times, dtype=np.int64) * 100_000, np.array([samples[t] for t in times]))


many_series = st.lists(
    st.builds(make, st.fixed_dictionaries({"host": st.sampled_from("abc"), "gpu": st.sampled_from("01")}), points),
    min_size=1,
    max_size=6,
)


def sub_query(aggregator: str, downsample: str, *, group_by: bool = True) -> dict[str, object]:
    host = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": group_by}
    return {"metric": "m", "aggregator": aggregator, "downsample": downsample, "filters": [host]}


def parse(fields: dict[str, object], *, milliseconds: bool = True) -> tuple[object, Span]:
    body = {"start": START_S, "end": END_S, "queries": [fields], "msResolution": milliseconds}
    query = query_from_json(body, 0)
    return query.queries[0], Span(query.start_us, query.end_us, query.milliseconds)


SLOW: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "avg": statistics.fmean,
    "min": min,
    "max": max,
    "count": len,
    "dev": statistics.pstdev,
    "median": statistics.median_high,
}


def slow_downsample(series: TimeSeries, interval_s: int, function: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for time_us, value in zip(series.times_us.tolist(), series.values.tolist(), strict=True):
        found.setdefault(time_us - time_us % (interval_s * 1_000_000), []).append(value)
    return {time_us: SLOW[function](values) for time_us, values in found.items()}


def slow_at(points: dict[int, float], time_us: int, *, interpolate: bool) -> float | None:
    if time_us in points:
        return points[time_us]
    before = max((t for t in points if t < time_us), default=None)
    after = min((t for t in points if t > time_us), default=None)
    if before is None or after is None or not interpolate:
        return None
    return points[before] + (points[after] - points[before]) * (time_us - before) / (after - before)


@given(many_series, st.sampled_from(sorted(SLOW)), st.sampled_from(["sum", "avg", "max", "count"]))
def test_the_engine_agrees_with_an_obvious_slow_one(group: list[TimeSeries], merge: str, thin: str) -> None:
    query, span = parse(sub_query(merge, f"10s-{thin}", group_by=False))
    downsampled = [slow_downsample(each, 10, thin) for each in group]
    times = sorted({time_us for each in downsampled for time_us in each})
    interpolate = merge != "count"
    expected = {}
    for time_us in times:
        there = [slow_at(each, time_us, interpolate=interpolate) for each in downsampled]
        expected[time_us] = SLOW[merge]([value for value in there if value is not None])

    (answer,) = evaluate(query, span, group)  # type: ignore[arg-type]

    assert answer.times_us.tolist() == times
    assert answer.values.tolist() == pytest.approx(list(expected.values()), rel=1e-9, abs=1e-3)


@given(many_series, st.sampled_from(sorted(AGGREGATORS)), st.sampled_from(["", "7s-avg", "500ms-p90", "1m-last-nan"]))
def test_downsampling_on_the_nodes_changes_nothing(group: list[TimeSeries], aggregator: str, downsample: str) -> None:
    query, span = parse(sub_query(aggregator, downsample))

    direct = evaluate(query, span, group)  # type: ignore[arg-type]
    there = [downsample_series(query, span, each) for each in group]  # type: ignore[arg-type]
    downsampled = evaluate(query, span, there, downsampled=True)  # type: ignore[arg-type]

    assert [a.tags for a in direct] == [a.tags for a in downsampled]
    for ours, theirs in zip(downsampled, direct, strict=True):
        np.testing.assert_array_equal(ours.times_us, theirs.times_us)
        np.testing.assert_array_equal(ours.values, theirs.values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=10,
)
words = st.sampled_from(
    ["sum", "avg", "1m-avg", "1dc-sum", "30s-", "1m-undefined", "9999999y-sum", "1ms-avg", "x", "", "*"]
)
sub_bodies = st.fixed_dictionaries(
    {},
    optional={
        "metric": words | json_values,
        "aggregator": words | json_values,
        "downsample": words | json_values,
        "rate": json_values,
        "rateOptions": st.dictionaries(st.sampled_from(["counter", "counterMax", "resetValue"]), json_values),
        "tags": json_values,
        "filters": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["regexp", "wildcard", "literal_or"]) | st.text(max_size=5)},
                optional={"tagk": json_values, "filter": json_values, "groupBy": json_values},
            ),
            max_size=3,
        ),
        "explicitTags": json_values,
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "start": json_values | st.sampled_from(["1h-ago", "2026/01/01", 0, 10**13]),
        "end": json_values,
        "queries": st.lists(sub_bodies, max_size=3) | json_values,
        "timezone": json_values,
        "useCalendar": json_values,
        "msResolution": json_values,
    },
)


@given(bodies | json_values)
def test_any_body_is_either_answered_or_refused(body: object) -> None:
    data = [make({"host": "a"}, {START_S * 10: 1.0})]
    with contextlib.suppress(BadQueryError):
        query = query_from_json(body, now_us=END_S * 1_000_000)
        for each in query.queries:
            evaluate(each, Span(query.start_us, query.end_us, query.milliseconds), data)
