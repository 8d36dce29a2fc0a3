"""Queries in one line, as tests write them: the JSON is what Grafana sends."""

from __future__ import annotations

import re
from typing import Any

_LINE = re.compile(
    r"(?P<aggregator>\w+):((?P<rate>rate)(\{counter,(?P<max>\d+)(,(?P<reset>\d+))?\})?:)?((?P<downsample>\w+-[\w-]+):)?"
    r"((?P<explicit>explicit_tags):)?(?P<metric>[^{}:]+)(\{(?P<groups>[^{}]*)\})?(\{(?P<only>[^{}]*)\})?"
)


def sub_query(line: str) -> dict[str, Any]:
    """Return ``sum:rate:10s-avg:metric{host=*}{gpu=0}`` as an element of ``queries``; the first braces form groups."""
    match = _LINE.fullmatch(line)
    assert match, line
    counter = {} if match["max"] is None else {"counter": True, "counterMax": match["max"]}
    counter |= {} if match["reset"] is None else {"resetValue": match["reset"]}
    return {
        "aggregator": match["aggregator"],
        "metric": match["metric"],
        "rate": match["rate"] is not None,
        "rateOptions": counter,
        "downsample": match["downsample"],
        "explicitTags": match["explicit"] is not None,
        "filters": [*_filters(match["groups"], group_by=True), *_filters(match["only"], group_by=False)],
    }


def _filters(braces: str | None, *, group_by: bool) -> list[dict[str, Any]]:
    pairs = [pair.partition("=") for pair in (braces or "").split(",") if pair]
    found = []
    for key, _, value in pairs:
        kind, expression = re.fullmatch(r"(?:(\w+)\()?(.*?)\)?", value).groups()  # type: ignore[union-attr]
        kind = kind or ("wildcard" if "*" in value else "literal_or")
        found.append({"type": kind, "tagk": key, "filter": expression, "groupBy": group_by})
    return found
