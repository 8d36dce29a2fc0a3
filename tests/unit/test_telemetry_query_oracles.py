"""The worked examples of OpenTSDB's documentation, as oracles for the query engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from laggard.telemetry.query import Answer, TimeSeries, evaluate, query_from_json
from laggard.telemetry.query.engine import Span
from tests.queries import sub_query

T0 = 1_356_998_400
NA = None

FILTER_DATA = [
    ({"dc": "dal", "host": "web01"}, 3.0),
    ({"dc": "dal", "host": "web02"}, 2.0),
    ({"dc": "dal", "host": "web03"}, 10.0),
    ({"host": "web01"}, 1.0),
    ({"host": "web01", "owner": "jdoe"}, 4.0),
    ({"dc": "lax", "host": "web01"}, 8.0),
    ({"dc": "lax", "host": "web02"}, 4.0),
]
CPU_DATA = [
    ({"host": "webserver01", "cpu": "0"}, 1.0),
    ({"host": "webserver01", "cpu": "1"}, 4.0),
    ({"host": "webserver02", "cpu": "0"}, 2.0),
    ({"host": "webserver02", "cpu": "1"}, 1.0),
]


def series(name: str, values: list[float | None], step_s: int = 10) -> TimeSeries:
    points = [(T0 + step_s * i, value) for i, value in enumerate(values) if value is not None]
    return TimeSeries(
        "m",
        {"series": name},
        np.array([time_s * 1_000_000 for time_s, _ in points], dtype=np.int64),
        np.array([value for _, value in points]),
    )


def single(metric: str, data: list[tuple[dict[str, str], float]]) -> list[TimeSeries]:
    times = np.array([T0 * 1_000_000], dtype=np.int64)
    return [TimeSeries(metric, tags, times, np.array([value])) for tags, value in data]


def ask(m: str, data: list[TimeSeries], end: int = T0 + 60) -> list[Answer]:
    query = query_from_json({"start": T0, "end": end, "queries": [sub_query(m)]}, now_us=0)
    return evaluate(query.queries[0], Span(query.start_us, query.end_us, query.milliseconds), data)


def ask_json(sub_query: Mapping[str, object], data: list[TimeSeries]) -> list[Answer]:
    query = query_from_json({"start": T0, "end": T0 + 60, "queries": [sub_query]}, now_us=0)
    return evaluate(query.queries[0], Span(query.start_us, query.end_us), data)


def offsets(answer: Answer) -> list[int]:
    return [int(time_us) // 1_000_000 - T0 for time_us in answer.times_us]


def test_series_that_are_offset_by_half_an_interval_are_interpolated() -> None:
    a = series("A", [NA, 5, NA, 15, NA, 5, NA])
    b = series("B", [10, NA, 20, NA, 10, NA, 20])

    (answer,) = ask("sum:m", [a, b])

    # The documentation prints 25 at t0+30s, but its own rows there are A = 15 and interpolated B = 15.
    assert answer.values.tolist() == [10, 20, 30, 30, 20, 20, 20]
    assert offsets(answer) == [0, 10, 20, 30, 40, 50, 60]


def test_aligned_series_are_summed_at_each_time() -> None:
    (answer,) = ask("sum:m", [series("A", [5, 5, 10, 15, 20, 5]), series("B", [10, 5, 20, 15, 10, 0])])

    assert answer.values.tolist() == [15, 10, 30, 30, 30, 5]


def test_downsampling_by_sum_to_30_s_adds_up_each_series_and_then_both() -> None:
    a, b = series("A", [5, 5, 10, 15, 20, 5, 1]), series("B", [10, 5, 20, 15, 10, 0, 5])

    (answer,) = ask("sum:30s-sum:m", [a, b])

    assert (offsets(answer), answer.values.tolist()) == ([0, 30, 60], [55, 65, 6])


def test_the_nan_fill_policy_marks_a_time_as_missing_only_where_all_series_miss_it() -> None:
    a, b = series("A", [NA, NA, NA, 15, NA, 5, NA]), series("B", [10, NA, 20, NA, NA, NA, 20])

    (answer,) = ask("sum:10s-sum-nan:m", [a, b])

    np.testing.assert_equal(answer.values, [10, np.nan, 20, 15, np.nan, 5, 20])


def test_without_a_fill_policy_times_that_no_series_has_are_left_out_and_gaps_interpolated() -> None:
    a, b = series("A", [NA, NA, NA, 15, NA, 5, NA]), series("B", [10, NA, 20, NA, NA, NA, 20])

    (answer,) = ask("sum:10s-sum:m", [a, b])

    assert (offsets(answer), answer.values.tolist()) == ([0, 20, 30, 50, 60], [10, 20, 35, 25, 20])


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        ("{host=web01}", [({"host": "web01"}, [], 16)]),
        ("{host=web01,dc=dal}", [({"host": "web01", "dc": "dal"}, [], 3)]),
        (
            "{host=*,dc=dal}",
            [({"host": f"web0{i}", "dc": "dal"}, [], value) for i, value in ((1, 3), (2, 2), (3, 10))],
        ),
        ("{dc=dal|lax}", [({"dc": "dal"}, ["host"], 15), ({"dc": "lax"}, ["host"], 12)]),
    ],
)
def test_filters_select_and_group_as_in_the_documentation(
    m: str, expected: list[tuple[dict[str, str], list[str], float]]
) -> None:
    answers = ask("sum:sys.cpu.system" + m, single("sys.cpu.system", FILTER_DATA))

    assert [(a.tags, a.aggregate_tags, a.values.tolist()) for a in answers] == [
        (tags, aggregated, [value]) for tags, aggregated, value in expected
    ]


def test_explicit_tags_take_only_series_with_exactly_these_tags() -> None:
    data = single("sys.cpu.system", FILTER_DATA)

    (one,) = ask("sum:explicit_tags:sys.cpu.system{host=web01}", data)
    several = ask("sum:explicit_tags:sys.cpu.system{host=*}{dc=*}", data)

    assert (one.tags, one.values.tolist()) == ({"host": "web01"}, [1])
    assert [(a.tags, a.aggregate_tags, a.values.tolist()) for a in several] == [
        ({"host": "web01"}, ["dc"], [11]),
        ({"host": "web02"}, ["dc"], [6]),
        ({"dc": "dal", "host": "web03"}, [], [10]),
    ]


@pytest.mark.parametrize(("m", "expected"), [("", 8), ("{host=webserver01}", 5), ("{host=webserver01,cpu=0}", 1)])
def test_a_metric_alone_means_all_its_series(m: str, expected: float) -> None:
    (answer,) = ask("sum:sys.cpu.user" + m, single("sys.cpu.user", CPU_DATA))

    assert answer.values.tolist() == [expected]


def test_a_16_bit_counter_that_wraps_keeps_counting() -> None:
    (answer,) = ask("sum:rate{counter,65535}:m", [series("A", [64000, 1000], step_s=1)])

    assert answer.values.tolist() == [2535]


@pytest.mark.parametrize(("options", "expected"), [("counter,65535", [2134.5]), ("counter,65535,100", [0.0])])
def test_a_rate_above_the_reset_value_is_taken_for_a_restart(options: str, expected: list[float]) -> None:
    (answer,) = ask(f"sum:rate{{{options}}}:m", [series("A", [2000, 500], step_s=30)])

    assert answer.values.tolist() == expected


def test_a_reset_can_be_dropped() -> None:
    (answer,) = ask_json(
        {"metric": "m", "aggregator": "sum", "rate": True, "rateOptions": {"counter": True, "dropResets": True}},
        [series("A", [100, 200, 50, 150])],
    )

    assert (offsets(answer), answer.values.tolist()) == ([10, 30], [10, 10])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("avg", 3.5),
        ("count", 4),
        ("dev", 4.25**0.5),
        ("last", 5),
        ("max", 6),
        ("median", 5),
        ("mimmax", 6),
        ("mimmin", 1),
        ("min", 1),
        ("p50", 3.5),
        ("p99", 6),
        ("sum", 14),
        ("zimsum", 14),
    ],
)
def test_every_aggregator_merges_four_values(name: str, expected: float) -> None:
    data = single("m", [({"k": str(i)}, value) for i, value in enumerate([1.0, 2.0, 6.0, 5.0])])

    (answer,) = ask(f"{name}:m", data)

    assert answer.values.tolist() == [pytest.approx(expected)]


def test_none_returns_every_series_separately() -> None:
    answers = ask("none:sys.cpu.user", single("sys.cpu.user", CPU_DATA))

    assert [(a.tags, a.values.tolist()) for a in answers] == [
        (tags, [value]) for tags, value in sorted(CPU_DATA, key=lambda item: sorted(item[0].items()))
    ]


def test_points_within_one_second_are_collapsed_with_the_aggregator() -> None:
    times = np.array([T0 * 1_000_000, T0 * 1_000_000 + 500_000], dtype=np.int64)

    (answer,) = ask("max:m", [TimeSeries("m", {}, times, np.array([1.0, 3.0]))])

    assert answer.values.tolist() == [3]
