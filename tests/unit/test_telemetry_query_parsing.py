"""Queries as clients send them."""

from __future__ import annotations

import pytest

from laggard.telemetry.query import BadQueryError, query_from_json
from laggard.telemetry.query.downsampling import Downsample, parse_downsample
from laggard.telemetry.query.filters import TagFilter, filter_from_tag
from laggard.telemetry.query.times import parse_time

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [
        ("now", NOW_US),
        ("1h-ago", NOW_US - HOUR_US),
        ("500ms-ago", NOW_US - 500_000),
        ("1n-ago", NOW_US - 30 * 24 * HOUR_US),
        (1_600_000_000, 1_600_000_000_000_000),
        ("1600000000", 1_600_000_000_000_000),
        (1_600_000_000_123, 1_600_000_000_123_000),
        ("1600000000123", 1_600_000_000_123_000),
        ("1600000000.25", 1_600_000_000_250_000),
    ],
)
def test_times_in_every_form_are_understood(text: object, expected_us: int) -> None:
    assert parse_time(text, NOW_US) == expected_us


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5", -5, 1e300, float("nan"), True, None, [], "1q-ago", "2026/01/31"]
)
def test_an_invalid_time_is_refused(text: object) -> None:
    with pytest.raises(BadQueryError):
        parse_time(text, NOW_US)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("1m-avg", Downsample(60_000_000, "avg")),
        ("1m-avg-", Downsample(60_000_000, "avg")),
        ("30s-", Downsample(30_000_000, "avg")),
        ("1m-undefined", Downsample(60_000_000, "avg")),
        ("500ms-max-zero", Downsample(500_000, "max", 0.0)),
    ],
)
def test_downsampling_in_every_form_that_clients_send_is_understood(text: str, expected: Downsample | None) -> None:
    assert parse_downsample(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1m-none", "none"),
        ("1m-magic", "magic"),
        ("1x-avg", "1x"),
        ("0all-last", "0all"),
        ("1m-avg-some", "some"),
        ("1m-avg-nan-x", "three"),
    ],
)
def test_a_bad_downsampling_is_refused_and_the_bad_part_named(text: str, named: str) -> None:
    with pytest.raises(BadQueryError, match=named):
        parse_downsample(text)


@pytest.mark.parametrize(
    ("kind", "expression", "accepted", "refused"),
    [
        ("literal_or", "a|b", ["a", "b"], ["A", "c", None]),
        ("iliteral_or", "a|B", ["A", "b"], ["c", None]),
        ("not_literal_or", "a|b", ["A", "c", None], ["a", "b"]),
        ("not_iliteral_or", "a", ["c", None], ["a", "A"]),
        ("wildcard", "*", ["", "x"], [None]),
        ("wildcard", "web*.com", ["web.com", "web1.com"], ["Web1.com", "web1.org", "web.co", None]),
        ("wildcard", "a*b*a", ["aba", "axbxa", "abba"], ["aa", "ab", "aab"]),
        ("iwildcard", "WEB*", ["web1"], ["w", None]),
        ("regexp", "web0[12]$", ["web01", "my-web02"], ["web03", "web011", None]),
    ],
)
def test_each_filter_type_accepts_and_refuses(
    kind: str, expression: str, accepted: list[str | None], refused: list[str | None]
) -> None:
    accepts = TagFilter(kind, "host", expression, group_by=False).accepts

    assert [value for value in [*accepted, *refused] if accepts(value)] == accepted


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("regexp", "("),
        ("regexp", "(a+)+$"),
        ("regexp", "(a|a)*b"),
        ("regexp", r"(a)\1"),
        ("regexp", "a*a*a*a*b"),
        ("regexp", "(?=a)"),
        ("not_key", ""),
        ("literal_or", ""),
        ("magic", "x"),
    ],
)
def test_an_invalid_filter_or_one_of_unbounded_time_is_refused(kind: str, expression: str) -> None:
    with pytest.raises(BadQueryError):
        TagFilter(kind, "host", expression, group_by=False)


@pytest.mark.parametrize(
    ("value", "kind", "expression"),
    [
        ("*", "wildcard", "*"),
        ("a|b", "literal_or", "a|b"),
        ("web*", "iwildcard", "web*"),
        ("regexp(web[0-9])", "regexp", "web[0-9]"),
    ],
)
def test_values_of_the_tags_map_become_filters_that_group(value: str, kind: str, expression: str) -> None:
    assert filter_from_tag("host", value, group_by=True) == TagFilter(kind, "host", expression, group_by=True)


def test_filters_win_over_tags_and_a_missing_aggregator_means_avg() -> None:
    host = {"type": "literal_or", "tagk": "host", "filter": "a", "groupBy": False}
    body = {"start": 1, "queries": [{"metric": "m", "tags": {"gpu": "*"}, "filters": [host]}]}

    (sub_query,) = query_from_json(body, NOW_US).queries

    assert sub_query.aggregator.name == "avg"
    assert [f.key for f in sub_query.filters] == ["host"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ([], "object"),
        ({}, "queries"),
        ({"queries": [{"metric": "m"}]}, "start"),
        ({"start": 1, "queries": [{}]}, "metric"),
        ({"start": 1, "queries": [{"metric": 5}]}, "metric"),
        ({"start": 1, "queries": [{"metric": "m", "aggregator": "magic"}]}, "magic"),
        ({"start": 1, "queries": [{"metric": "m"}] * 101}, "101"),
        ({"start": 2, "end": 1, "queries": [{"metric": "m"}]}, "before"),
        ({"start": 1, "timezone": "UTC", "queries": [{"metric": "m"}]}, "'timezone' is not supported"),
        ({"start": 1, "useCalendar": True, "queries": [{"metric": "m"}]}, "'useCalendar' is not supported"),
        ({"start": "2026/01/31", "queries": [{"metric": "m"}]}, "is not a time"),
        ({"start": 1, "queries": [{"metric": "m", "downsample": "1dc-sum"}]}, "'1dc' is not a duration"),
        ({"start": 1, "queries": [{"metric": "m", "rate": True, "rateOptions": {"counterMax": "x"}}]}, "counterMax"),
    ],
)
def test_a_bad_body_is_refused_and_the_bad_part_named(body: object, named: str) -> None:
    with pytest.raises(BadQueryError, match=named):
        query_from_json(body, NOW_US)


@pytest.mark.parametrize(
    ("metric", "names"),
    [("a", ("a",)), ("a|b", ("a", "b")), ("|a||b|a", ("a", "b")), (["a|b"], ("a|b",)), (["a", "b|"], ("a", "b|"))],
)
def test_text_may_name_several_metrics_and_the_names_of_a_list_are_taken_as_they_are(
    metric: object, names: tuple[str, ...]
) -> None:
    query = query_from_json({"start": "1h-ago", "queries": [{"metric": metric}]}, NOW_US)

    assert query.queries[0].metrics == names


@pytest.mark.parametrize("metric", [None, "", "|", [], [""], [1], 1, {}, "a" * 2000])
def test_a_query_without_a_usable_name_of_a_metric_is_refused(metric: object) -> None:
    with pytest.raises(BadQueryError, match="metric"):
        query_from_json({"start": "1h-ago", "queries": [{"metric": metric}]}, NOW_US)


@pytest.mark.parametrize(("value", "expression"), [("node1", "node1"), (3, "3"), (0, "0"), (0.5, "0.5")])
def test_the_value_of_a_tag_may_be_a_number(value: object, expression: str) -> None:
    (sub_query,) = query_from_json({"start": 1, "queries": [{"metric": "m", "tags": {"gpu": value}}]}, NOW_US).queries

    assert [each.expression for each in sub_query.filters] == [expression]


@pytest.mark.parametrize("value", [True, False, [], ["a"], {}])
def test_the_value_of_a_tag_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(BadQueryError, match="value of 'gpu' must be text"):
        query_from_json({"start": 1, "queries": [{"metric": "m", "tags": {"gpu": value}}]}, NOW_US)
