"""The query engine, step by step: numbers worked out by hand or by NumPy's own quantiles."""

from __future__ import annotations

import math
import statistics
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.telemetry.errors import BadQueryError, QueryTooLargeError
from laggard.telemetry.query import Answer, TimeSeries, evaluate, query_from_json
from laggard.telemetry.query.aggregators import AGGREGATORS, aggregator
from laggard.telemetry.query.downsampling import Downsample, buckets, downsample, parse_downsample, reduce_runs
from laggard.telemetry.query.engine import (
    Span,
    downsample_series,
    merge,
)
from laggard.telemetry.query.filters import TagFilter, matches
from laggard.telemetry.query.parsing import Query, SubQuery
from laggard.telemetry.query.rates import Rate, rate
from laggard.telemetry.query.times import parse_duration, parse_time
from tests.queries import sub_query

NAN = math.nan
SECOND_US = 1_000_000
T0 = 1_000_000_000
NOW_US = 1_700_000_000_000_000


def us(*seconds: float) -> NDArray[np.int64]:
    return np.array([round(second * SECOND_US) for second in seconds], dtype=np.int64)


def floats(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("7s", 7),
        ("3m", 180),
        ("2h", 7200),
        ("1d", 86_400),
        ("2w", 2 * 604_800),
        ("1n", 30 * 86_400),
        ("1y", 365 * 86_400),
        ("100000000000s", 1e11),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds * SECOND_US


@pytest.mark.parametrize("text", ["0s", "100000000001s", "1", "s", "1.5s", "1234567890123456ms"])
def test_a_duration_of_nothing_or_beyond_all_time_is_refused(text: str) -> None:
    with pytest.raises(BadQueryError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "expected_us"),
    [
        (0, 0),
        (2**32 - 1, (2**32 - 1) * SECOND_US),
        (2**32, 2**32 * 1000),  # more than 32 bits: milliseconds
        (10**14, 10**17),
        (" now ", NOW_US),
        ("1000y-ago", 0),
    ],
)
def test_a_time_may_lie_anywhere_from_1970_to_the_end_of_all_time(value: object, expected_us: int) -> None:
    assert parse_time(value, NOW_US) == expected_us


@pytest.mark.parametrize("value", [10**14 + 1, -1, math.inf, "1970/01/01", "-1", False])
def test_a_time_before_1970_or_beyond_all_time_is_refused(value: object) -> None:
    with pytest.raises(BadQueryError, match="is no"):
        parse_time(value, NOW_US)


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Rate(), [(1, 5), (3, -10), (4, 7)]),
        (Rate(counter=True, counter_max=100), [(1, 5), (3, 40), (4, 7)]),
        (Rate(counter=True, counter_max=100, reset_value=39), [(1, 5), (3, 0), (4, 7)]),
        (Rate(counter=True, counter_max=100, reset_value=40), [(1, 5), (3, 40), (4, 7)]),
        (Rate(counter=True, drop_resets=True), [(1, 5), (4, 7)]),
        (Rate(drop_resets=True), [(1, 5), (3, -10), (4, 7)]),  # what is no counter may fall
        (Rate(counter=True, counter_max=100, reset_value=1), [(1, 5), (3, 0), (4, 7)]),  # rises are never resets
    ],
)
def test_a_rate_is_the_change_per_second(spec: Rate, expected: list[tuple[int, float]]) -> None:
    times_us, values = rate(spec, us(0, 1, 3, 3, 4), floats(20, 25, 5, 6, 13))

    assert list(zip((times_us / SECOND_US).tolist(), values.tolist(), strict=True)) == expected


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "a*b*c*",
        "(a*)(b+)c*",
        "a*|b*|c*",
        "(?:a*)",
        "(ab)?c*d*e*",
        "^[ab]*c.*?[^x]+$",
        "a?b?c?d?",
        r"[*+{)*]\)*\*",
        "[])*]*",
    ],
)
def test_three_repeats_of_single_characters_are_allowed(expression: str) -> None:
    assert TagFilter("regexp", "host", expression, group_by=False).accepts("abc") in (True, False)


@pytest.mark.parametrize(
    "expression",
    [
        "a*b*c*d*",
        "(a*b*)(c*d*)",
        "a*|b*|c*|d*",
        "(?:ab)*",
        "(a*b)?c*d*e*",
        "a{2}b{2}c{2}d{2}",
        "(a){2}",
        "(?<!a)b",
        "(?:a)*",
        r"[\]](a)*",
        r"\\(a)*",
    ],
)
def test_a_fourth_repeat_or_one_of_a_group_is_refused(expression: str) -> None:
    with pytest.raises(BadQueryError):
        TagFilter("regexp", "host", expression, group_by=False)


@pytest.mark.parametrize(("kind", "pad"), [("regexp", "a"), ("wildcard", "*"), ("iwildcard", "*")])
def test_a_pattern_has_at_most_1024_characters(kind: str, pad: str) -> None:
    TagFilter(kind, "host", pad + "a" * 1023, group_by=False)
    with pytest.raises(BadQueryError, match="longer than 1024"):
        TagFilter(kind, "host", pad + "a" * 1024, group_by=False)
    TagFilter("literal_or", "host", "a" * 2000, group_by=False)


@pytest.mark.parametrize(
    ("expression", "value", "accepted"),
    [
        ("aba*aba", "abaaba", True),
        ("aba*aba", "aba", False),  # the two ends would share a letter
        ("a*bc*c", "abcc", True),
        ("a*bc*c", "abc", False),
        ("*b*", "abc", True),
        ("a**c", "ac", True),
        ("a*x", "ax", True),
        ("*x*x*", "axbx", True),
        ("*x*x*", "axb", False),
    ],
)
def test_a_wildcards_parts_follow_one_another_without_sharing_letters(
    expression: str, value: str, accepted: bool
) -> None:
    assert TagFilter("wildcard", "host", expression, group_by=False).accepts(value) == accepted


def test_a_filter_needs_a_key_a_star_and_literals() -> None:
    for kind, key, expression in (("wildcard", "", "*"), ("wildcard", "host", "abc"), ("literal_or", "host", "||")):
        with pytest.raises(BadQueryError):
            TagFilter(kind, key, expression, group_by=False)


def test_explicit_tags_allow_no_other_tag_and_a_missing_key_is_not_a_tag() -> None:
    host = TagFilter("wildcard", "host", "*", group_by=False)

    assert matches([host], {"host": "a", "dc": "x"})
    assert not matches([host], {"host": "a", "dc": "x"}, explicit_tags=True)
    assert not matches([host], {"dc": "x"})
    assert matches([host], {"host": "a"}, explicit_tags=True)


# -- aggregators -------------------------------------------------------------------------------------------------------

COLUMNS = [[3.0, 1.0, 2.0, 8.0], [NAN, 5.0, NAN, 4.0], [NAN, NAN, 7.0, NAN], [NAN] * 4]
PLAIN: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "zimsum": math.fsum,
    "min": min,
    "mimmin": min,
    "max": max,
    "mimmax": max,
    "avg": statistics.fmean,
    "dev": statistics.pstdev,
    "count": len,
    "median": statistics.median_high,
    "last": lambda values: values[-1],
    "none": lambda values: values[-1],
}


@pytest.mark.parametrize("name", PLAIN)
def test_an_aggregator_makes_one_value_of_each_column_without_what_is_missing(name: str) -> None:
    found = aggregator(name).reduce(np.array(COLUMNS).T)

    there = [[value for value in column if not math.isnan(value)] for column in COLUMNS]
    nothing = 0.0 if name == "count" else NAN
    expected = [PLAIN[name](values) if values else nothing for values in there]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("digits", "quantile"), [("50", 0.5), ("75", 0.75), ("90", 0.9), ("99", 0.99), ("999", 0.999)])
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_a_percentile_is_numpys_of_the_same_kind(digits: str, quantile: float, count: int) -> None:
    values = np.random.default_rng(count).normal(0, 1, count)
    matrix = np.full((count + 2, 2), NAN)
    matrix[1 : count + 1, 0] = values

    found = aggregator(f"p{digits}").reduce(matrix)

    np.testing.assert_allclose(found, [np.quantile(values, quantile, method="weibull"), NAN], rtol=1e-12)


def test_aggregators_treat_gaps_as_opentsdbs_guide_says() -> None:
    skip = {"count", "zimsum", "mimmin", "mimmax", "last", "none"}
    assert {name for name, each in AGGREGATORS.items() if not each.interpolates} == skip
    assert {name for name, each in AGGREGATORS.items() if not each.keeps_one} == {"count", "dev"}


# -- downsampling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("counts", [(3, 1, 2), (1, 1, 1), (2, 2, 2)])
def test_each_bucket_has_one_value_of_its_samples(name: str, counts: tuple[int, ...]) -> None:
    values = [5.0, 1.0, 4.0, 2.0, 9.0, 3.0][: sum(counts)]
    begins = [0, 20, 30]  # none from 10 on
    moments = [begin + place for begin, count in zip(begins, counts, strict=True) for place in range(count)]
    parts = np.split(np.array(values), np.cumsum(counts)[:-1])

    at, found = downsample(Downsample(10, name), np.arange(0, 40, 10), np.array(moments), np.array(values))

    assert at.tolist() == [0, 2, 3]
    np.testing.assert_allclose(found, [PLAIN[name](part.tolist()) for part in parts], rtol=1e-12)


def test_a_sample_at_the_edge_of_a_bucket_is_the_next_ones() -> None:
    at, found = downsample(Downsample(10, "sum"), np.array([0, 10]), np.array([9, 10, 11]), floats(1, 2, 4))

    assert (at.tolist(), found.tolist()) == ([0, 1], [1, 6])


@pytest.mark.parametrize(
    ("times_us", "places", "sums"),
    [([], [], []), ([15, 16], [1], [3]), ([-5, 3], [0], [2]), ([-5, -1, 12], [1], [4]), ([25, 26], [2], [3])],
)
def test_buckets_without_samples_have_no_value_and_samples_before_the_first_bucket_no_bucket(
    times_us: list[int], places: list[int], sums: list[float]
) -> None:
    values = floats(1, 2, 4)[: len(times_us)]
    at, found = downsample(Downsample(10, "sum"), np.array([0, 10, 20]), np.array(times_us, dtype=np.int64), values)
    assert (at.tolist(), found.tolist()) == (places, sums)


def test_one_long_bucket_among_many_short_ones_takes_no_room_for_all() -> None:
    begins = np.arange(400)
    values = np.arange(100_000.0)  # the last bucket has nearly all
    tracemalloc.start()
    try:
        found = reduce_runs("median", values, begins)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.tolist() == [*range(399), 399 + (100_000 - 399) // 2]
    assert peak_bytes < 100_000_000


@pytest.mark.parametrize(
    ("interval", "start", "end", "expected"),
    [(10, 25, 49, [20, 30, 40]), (10, 20, 40, [20, 30, 40]), (10, 20, 39, [20, 30])],
)
def test_buckets_are_whole_multiples_of_the_interval(interval: int, start: int, end: int, expected: list[int]) -> None:
    assert buckets(Downsample(interval, "sum"), start, end).tolist() == expected


def test_two_hundred_thousand_buckets_are_allowed() -> None:
    assert len(buckets(Downsample(10, "sum"), 0, 2_000_000)) == 200_001
    with pytest.raises(QueryTooLargeError):
        buckets(Downsample(10, "sum"), 0, 2_000_010)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("1s-sum", True), ("1500ms-sum", False), ("2m-sum", True)],
)
def test_buckets_of_whole_seconds_are_known(text: str, whole: bool) -> None:
    spec = parse_downsample(text)
    assert spec is not None
    assert spec.is_whole_seconds == whole


# -- merging -----------------------------------------------------------------------------------------------------------

GRID = np.array([0, 10, 20, 40])
LINES = [
    TimeSeries("m", {}, np.array(at), floats(*values))
    for at, values in (([0, 40], (1, 9)), ([10, 20], (4, 6)), ([20], (5,)))
]
FILLED: dict[bool, list[list[float]]] = {
    False: [[1, NAN, NAN, 9], [NAN, 4, 6, NAN], [NAN, NAN, 5, NAN]],
    True: [[1, 3, 5, 9], [NAN, 4, 6, NAN], [NAN, NAN, 5, NAN]],
}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_merging_fills_gaps_between_the_first_and_the_last_point(name: str) -> None:
    how = aggregator(name)
    present, values = merge(how, GRID, LINES, None)

    assert present.tolist() == [True] * 4
    np.testing.assert_allclose(values, how.reduce(np.array(FILLED[how.interpolates])), rtol=1e-12)


def test_a_value_is_present_only_where_a_series_has_a_point_of_its_own() -> None:
    for name in ("sum", "median"):
        assert merge(aggregator(name), GRID, LINES[:1], None)[0].tolist() == [True, False, False, True]


def test_a_group_has_a_bound() -> None:
    merge(aggregator("median"), GRID, LINES, None, 12)
    with pytest.raises(QueryTooLargeError, match="median over 4 series at 4 times"):
        merge(aggregator("median"), GRID, [*LINES, LINES[0]], None, 12)


# -- the whole ---------------------------------------------------------------------------------------------------------


def sub(m: str) -> SubQuery:
    return query_from_json({"start": 1, "queries": [sub_query(m)]}, NOW_US).queries[0]


def series(tags: dict[str, str], *points: tuple[float, float]) -> TimeSeries:
    return TimeSeries("m", tags, us(*(T0 + at for at, _ in points)), floats(*(value for _, value in points)))


def span(begin: float, end: float, milliseconds: bool = True) -> Span:
    return Span(round((T0 + begin) * SECOND_US), round((T0 + end) * SECOND_US), milliseconds)


def points(answer: Answer) -> list[tuple[float, float]]:
    return list(zip((answer.times_us / SECOND_US - T0).tolist(), answer.values.tolist(), strict=True))


LONG = series({"host": "a"}, *((at, at) for at in range(-10, 40, 5)))


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        ("sum:m", [(5, 5), (10, 10), (15, 15), (20, 20)]),  # both ends are in
        ("sum:10s-sum:m", [(10, 25), (20, 20)]),  # the bucket that begins before the range is not shown
        ("sum:10s-count-zero:m", [(10, 2), (20, 1)]),
        ("sum:rate:m", [(10, 1), (15, 1), (20, 1)]),
        ("count:m", [(5, 1), (10, 1), (15, 1), (20, 1)]),
        ("dev:10s-max:m", [(10, 0), (20, 0)]),
    ],
)
def test_a_range_holds_both_of_its_ends(m: str, expected: list[tuple[float, float]]) -> None:
    asked = span(5, 20)
    (answer,) = evaluate(sub(m), asked, [downsample_series(sub(m), asked, LONG)], downsampled=True)

    assert points(answer) == expected
    (whole,) = evaluate(sub(m), asked, [LONG])
    assert points(whole) == expected


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        ("max:m", [(0, 3), (1, 2)]),
        ("sum:m", [(0, 4), (1, 2)]),
        ("none:m", [(0, 3), (1, 2)]),
        ("sum:500ms-min:m", [(0, 1), (1, 2)]),  # made one by the downsampling's function
    ],
)
def test_of_several_points_in_a_second_one_is_made(m: str, expected: list[tuple[float, float]]) -> None:
    data = series({}, (0.1, 1), (0.6, 3), (1.2, 2))
    asked = span(0, 10, milliseconds=False)

    (answer,) = evaluate(sub(m), asked, [data])
    assert points(answer) == expected
    (exact,) = evaluate(sub(m), span(0, 10), [data])
    assert len(exact.values) == 3
    later = series({}, (0.1, 1), *((5 + at, value) for at, value in ((0.1, 1), (0.6, 3), (1.2, 2))))
    (answer,) = evaluate(sub(m), asked, [later])
    assert points(answer) == [(0, 1), *((5 + at, value) for at, value in expected)]


def test_of_samples_at_the_same_time_the_last_one_counts() -> None:
    twice = series({"host": "a"}, (0, 1), (1, 5), (1, 7), (2, 1))
    other = series({"host": "b"}, (0, 10), (1, 10), (2, 10))

    (answer,) = evaluate(sub("sum:m"), span(0, 10), [twice, other])

    assert points(answer) == [(0, 11), (1, 17), (2, 11)]


def test_tags_are_shared_or_differ_or_are_not_of_all() -> None:
    tags = [{"host": "a", "dc": "x", "gpu": "0"}, {"host": "b", "dc": "x"}, {"host": "b", "dc": "x", "gpu": "0"}]
    data = [series(each, (0, 1), (10, 1)) for each in tags]
    query, asked = sub("sum:10s-sum:m"), span(0, 20)

    (answer,) = evaluate(query, asked, data)

    assert (answer.metric, answer.tags, answer.aggregate_tags) == ("m", {"dc": "x"}, ["host"])
    assert points(answer) == [(0, 3), (10, 3)]


def test_groups_are_by_the_tags_that_group() -> None:
    data = [series({"host": host, "gpu": gpu}, (0, 1)) for host in "ab" for gpu in "01"]

    for m, n_groups in {
        "sum:m": 1,
        "sum:m{host=*}": 2,
        "sum:m{host=*,gpu=*}": 4,
        "none:m": 4,
        "sum:m{}{host=*}": 1,
    }.items():
        assert len(evaluate(sub(m), span(0, 10), data)) == n_groups
    answers = evaluate(sub("sum:m{gpu=0}{host=a|b}"), span(0, 10), data)
    assert [(each.tags, each.aggregate_tags, each.values.tolist()) for each in answers] == [
        ({"gpu": "0"}, ["host"], [2])
    ]


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        ("sum:10s-sum-zero:m", [(0, 3), (10, 0), (20, 5), (30, 0)]),
        ("sum:10s-sum-nan:m", [(0, 3), (10, NAN), (20, 5), (30, NAN)]),
        ("sum:10s-sum:m", [(0, 3), (20, 5)]),
    ],
)
def test_empty_buckets_are_filled_or_left_out(m: str, expected: list[tuple[float, float]]) -> None:
    data = [series({"host": "a"}, (0, 1), (20, 5)), series({"host": "b"}, (0, 2))]

    (answer,) = evaluate(sub(m), span(0, 30), data)

    np.testing.assert_array_equal(np.array(points(answer)), np.array(expected))


def test_the_empty_buckets_of_a_series_by_itself_are_filled_too() -> None:
    data = [series({"host": "a"}, (0, 1), (20, 5))]
    (answer,) = evaluate(sub("sum:10s-sum-zero:m"), span(0, 30), data)
    assert points(answer) == [(0, 1), (10, 0), (20, 5), (30, 0)]


def test_an_answer_has_a_bound_on_its_points() -> None:
    data = [series({"host": host}, (0, 1), (1, 1)) for host in "ab"]
    assert len(evaluate(sub("none:m"), span(0, 10), data, max_points=4)) == 2
    with pytest.raises(QueryTooLargeError, match="more than 3 points"):
        evaluate(sub("none:m"), span(0, 10), data, max_points=3)


def test_samples_that_are_not_finite_and_series_outside_the_range_are_not_shown() -> None:
    data = series({}, (0, 1), (1, NAN), (2, math.inf), (3, 4))

    (answer,) = evaluate(sub("sum:m"), span(0, 10), [data])

    assert points(answer) == [(0, 1), (3, 4)]
    assert evaluate(sub("sum:m"), span(100, 110), [data]) == []


# -- what clients send -------------------------------------------------------------------------------------------------


def asked_json(**fields: object) -> Query:
    return query_from_json({"start": 1, "queries": [{"metric": "m", "aggregator": "sum"}], **fields}, NOW_US)


def asked_one(**fields: object) -> SubQuery:
    return asked_json(queries=[{"metric": "m", **fields}]).queries[0]


def test_what_is_not_asked_for_is_off() -> None:
    query = asked_json()

    assert (query.start_us, query.end_us) == (SECOND_US, NOW_US)
    assert (query.milliseconds, query.nulls, query.arrays, query.show_query) == (False,) * 4
    one = asked_one()
    assert (one.downsample, one.rate, one.explicit_tags, one.filters, one.index) == (None, None, False, (), 0)


@pytest.mark.parametrize(
    ("field", "attribute"),
    [
        ("msResolution", "milliseconds"),
        ("showQuery", "show_query"),
    ],
)
@pytest.mark.parametrize(
    ("value", "on"),
    [(True, True), ("true", True), ("1", True), ("Yes", True), (False, False), ("false", False), ("", False)],
)
def test_a_flag_may_be_text(field: str, attribute: str, value: object, on: bool) -> None:
    assert getattr(asked_json(**{field: value}), attribute) == on


@pytest.mark.parametrize("value", ["maybe", 1, [True]])
def test_a_flag_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(BadQueryError, match="'showQuery' must be true or false"):
        asked_json(showQuery=value)


def test_nulls_are_only_for_clients_that_know_them() -> None:
    assert asked_json(msResolution=False).nulls


def test_the_bounds_of_a_query_are_inclusive() -> None:
    metric = {"metric": "m"}
    assert len(asked_json(queries=[metric] * 100).queries) == 100
    assert asked_json(queries=[metric] * 3).queries[2].index == 2
    with pytest.raises(QueryTooLargeError):
        asked_json(queries=[metric] * 101)
    assert asked_json(start=5, end=5).end_us == 5 * SECOND_US

    tags = {f"k{number}": "*" for number in range(50)}
    assert len(asked_one(tags=tags).filters) == 50
    a_filter = {"type": "wildcard", "tagk": "host", "filter": "*"}
    for fields in (
        {"tags": {**tags, "more": "*"}},
        {"tags": tags, "filters": [a_filter]},
        {"filters": [a_filter] * 51},
    ):
        with pytest.raises(BadQueryError, match="at most 50"):
            asked_one(**fields)

    assert asked_one(metric="m" * 1024).metrics == ("m" * 1024,)
    for name in ("m" * 1025, "||", ""):
        with pytest.raises(BadQueryError, match="no metric"):
            asked_one(metric=name)


def test_several_metrics_are_asked_for_at_once() -> None:
    assert asked_one(metric="a|b||a").metrics == ("a", "b")


def test_tags_group_and_filters_group_only_when_they_say_so() -> None:
    assert [f.group_by for f in asked_one(tags={"host": 5, "gpu": "*"}).filters] == [True, True]
    assert asked_one(tags={"host": 5}).filters[0].accepts("5")
    filters = [{"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": by} for by in (True, False, None)]
    assert [f.group_by for f in asked_one(filters=filters).filters] == [True, False, False]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Rate()),
        (None, Rate()),
        ({"counter": True, "counterMax": "", "resetValue": None}, Rate(counter=True)),
        ({"counterMax": "100", "resetValue": 5}, Rate(counter_max=100.0, reset_value=5.0)),
        ({"dropResets": "true"}, Rate(drop_resets=True)),
    ],
)
def test_the_options_of_a_rate_may_be_empty_or_text(options: object, expected: Rate) -> None:
    assert asked_one(rate=True, rateOptions=options).rate == expected
    assert asked_one(rate=False, rateOptions=options).rate is None
    assert Rate().counter_max == 2.0**63


@pytest.mark.parametrize("value", [True, "x", [1], math.inf, "nan", "1e999"])
def test_what_is_not_a_number_is_refused(value: object) -> None:
    with pytest.raises(BadQueryError, match="'resetValue' must be a number"):
        asked_one(rate=True, rateOptions={"resetValue": value})
