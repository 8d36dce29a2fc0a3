"""Parsing of queries into validated records.

https://opentsdb.net/docs/build/html/api_http/query/index.html
Clients are sloppy in known ways (an empty fill policy, ``undefined`` as a function, numbers as text): what has only one
possible meaning is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laggard.telemetry.errors import BadQueryError, QueryTooLargeError
from laggard.telemetry.query.aggregators import Aggregator, aggregator
from laggard.telemetry.query.downsampling import Downsample, parse_downsample
from laggard.telemetry.query.filters import TagFilter, filter_from_tag
from laggard.telemetry.query.rates import MAX_COUNTER, Rate
from laggard.telemetry.query.times import parse_time

MAX_SUB_QUERIES = 100
MAX_FILTERS = 50
MAX_METRIC = 1024
_FALSE = {"false", "0", "no"}


@dataclass(frozen=True, slots=True)
class SubQuery:
    """One metric to draw, and how to filter, downsample and merge its series."""

    metric: str
    metrics: tuple[str, ...]  # the names; those of a list are taken as they are, `|` and all
    aggregator: Aggregator  # merges the series of a group
    filters: tuple[TagFilter, ...]  # all must hold; those with `group_by` form groups
    downsample: Downsample | None  # none if not requested
    rate: Rate | None
    explicit_tags: bool  # only series that have no other tags than those of the filters
    index: int  # its position in the query
    source: Mapping[str, Any]  # the JSON that was sent


@dataclass(frozen=True, slots=True)
class Query:
    """A time range, what to draw of it, and the form of the answer."""

    start_us: int  # both inclusive
    end_us: int
    queries: tuple[SubQuery, ...]  # what to draw
    milliseconds: bool  # answer in milliseconds, else in whole seconds
    nulls: bool  # whether missing values may be `null`: the client draws a gap for it
    arrays: bool  # as in OpenTSDB's API
    show_query: bool


def query_from_json(body: object, now_us: int, *, arrays: bool = False) -> Query:
    """Parse the body of ``POST /api/query``."""
    fields = _mapping(body, "the body")
    for name in ("timezone", "useCalendar"):
        if fields.get(name):
            raise BadQueryError(f"{name!r} is not supported: times are in UTC, and intervals multiples of their length")
    listed = fields.get("queries")
    if not isinstance(listed, list) or not listed:
        raise BadQueryError("missing 'queries': give a list of at least one query")
    if len(listed) > MAX_SUB_QUERIES:
        raise QueryTooLargeError(f"{len(listed)} sub-queries: at most {MAX_SUB_QUERIES} are allowed")
    start_us, end_us = _range(fields.get("start"), fields.get("end"), now_us)
    milliseconds = _flag(fields.get("msResolution"), "msResolution")
    return Query(
        start_us,
        end_us,
        tuple(sub_query_from_json(each, index) for index, each in enumerate(listed)),
        milliseconds=milliseconds,
        # Grafana's Go back end, which sends no msResolution at all, would draw a null as 0.
        nulls="msResolution" in fields,
        arrays=arrays,
        show_query=_flag(fields.get("showQuery"), "showQuery"),
    )


def sub_query_from_json(body: object, index: int) -> SubQuery:
    """Parse one element of ``queries``."""
    fields = _mapping(body, f"query {index}")
    names = _names(fields.get("metric"))
    metric = "|".join(names)
    if not 0 < len(metric) <= MAX_METRIC:
        raise BadQueryError(f"query {index} has no metric")
    listed = fields.get("filters") or []
    tags = _mapping(fields.get("tags") or {}, "tags")
    if not isinstance(listed, list) or len(listed) + len(tags) > MAX_FILTERS:
        raise BadQueryError(f"filters must be a list of at most {MAX_FILTERS}")
    filters = tuple(_filter(each) for each in listed) or tuple(
        filter_from_tag(key, _scalar_text(value, key), group_by=True) for key, value in tags.items()
    )
    name = _text(fields, "aggregator")
    options = fields.get("rateOptions")
    return SubQuery(
        metric,
        names,
        aggregator("avg" if name in {"", "undefined"} else name),
        filters,
        parse_downsample(_text(fields, "downsample")),
        _rate(_mapping(options or {}, "rateOptions")) if _flag(fields.get("rate"), "rate") else None,
        _flag(fields.get("explicitTags"), "explicitTags"),
        index,
        fields,
    )


def series_query(metric: str, downsample: str) -> SubQuery:
    """Return the query for all series of a metric, each by itself."""
    return sub_query_from_json({"metric": [metric], "aggregator": "none", "downsample": downsample}, 0)


def _rate(options: Mapping[str, Any]) -> Rate:
    return Rate(
        counter=_flag(options.get("counter"), "counter"),
        counter_max=_number(options.get("counterMax"), "counterMax", MAX_COUNTER),
        reset_value=_number(options.get("resetValue"), "resetValue", 0.0),
        drop_resets=_flag(options.get("dropResets"), "dropResets"),
    )


def _range(start: object, end: object, now_us: int) -> tuple[int, int]:
    if start is None or start == "":
        raise BadQueryError("missing 'start': give a time, for example 1h-ago")
    start_us = parse_time(start, now_us)
    end_us = now_us if end is None or end == "" else parse_time(end, now_us)
    if end_us < start_us:
        raise BadQueryError("the end of the range is before its start")
    return start_us, end_us


def _filter(body: object) -> TagFilter:
    fields = _mapping(body, "a filter")
    expression = _scalar_text(fields.get("filter", ""), "filter")
    return TagFilter(_text(fields, "type"), _text(fields, "tagk"), expression, _flag(fields.get("groupBy"), "groupBy"))


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadQueryError(f"{what} must be a JSON object")
    return value


def _names(metric: object) -> tuple[str, ...]:
    listed = metric.split("|") if isinstance(metric, str) else [] if metric is None else metric
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise BadQueryError("'metric' must be text, or a list of texts")
    return tuple(dict.fromkeys(name for name in listed if name))


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadQueryError(f"{name!r} must be text")
    return value


def _scalar_text(value: object, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise BadQueryError(f"the value of {name[:80]!r} must be text")
    return "" if value is None else str(value)


def _flag(value: object, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in {"true", "1", "yes", "", *_FALSE}:
        return value.lower() in {"true", "1", "yes"}
    raise BadQueryError(f"{name!r} must be true or false")


def _number(value: object, name: str, default: float) -> float:
    if value is None or value == "":
        return default
    if (number := finite_number(value)) is None:
        raise BadQueryError(f"{name!r} must be a number")
    return number


def finite_number(value: object) -> float | None:
    """Return a number that clients may write as text; None if it is none, or not finite."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
