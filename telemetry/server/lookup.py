"""Search in names and tags, for ``/api/suggest`` and ``/api/search/lookup``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laggard.kvstore.series.sample_store import SeriesKey
from laggard.telemetry.errors import RequestError

DEFAULT_LIMIT = 25
_LOOKUP = re.compile(r"([^{}]*)(?:\{([^{}]*)\})?")

Pairs = list[tuple[str, str]]


def suggest(keys: Iterable[SeriesKey], kind: str, prefix: str, limit: int) -> list[str]:
    """Return metrics, tag keys or tag values that begin with ``prefix``, sorted; at most ``limit``, by default 25."""
    match kind:
        case "metrics":
            names = {metric for metric, _ in keys}
        case "tagk":
            names = {key for _, tags in keys for key, _ in tags}
        case "tagv":
            names = {value for _, tags in keys for _, value in tags}
        case _:
            raise RequestError(400, f"type is {kind[:40]!r}: it must be metrics, tagk or tagv")
    return sorted(name for name in names if name.startswith(prefix))[: limit if limit > 0 else DEFAULT_LIMIT]


def parse_lookup(text: str) -> tuple[str, Pairs]:
    """Parse ``metric{key=value,...}``; metric, keys and values may be empty or ``*``."""
    match = _LOOKUP.fullmatch(text)
    if match is None:
        raise RequestError(400, f"m={text[:120]!r} is not <metric>{{<tag>=<value>,...}}")
    pairs = []
    for pair in filter(None, (match[2] or "").split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise RequestError(400, f"{pair[:80]!r} is not <tag>=<value>")
        pairs.append((key.strip() or "*", value.strip() or "*"))
    return match[1], pairs


def lookup(keys: Iterable[SeriesKey], metric: str, pairs: Pairs, limit: int) -> dict[str, Any]:
    """Return the series of a metric (empty or ``*``: of all metrics) that have the given tags."""
    # Several values of one key are alternatives; a series must have all of the keys. A `limit` of 0 or less means all.
    wanted: dict[str, set[str]] = {}
    for key, value in pairs:
        wanted.setdefault(key, set()).update(value.split("|"))
    found = sorted(key for key in keys if metric in {"", "*", key[0]} and _has(key[1], wanted))
    shown = found[:limit] if limit > 0 else found
    return {"totalResults": len(found), "results": [{"metric": name, "tags": dict(tags)} for name, tags in shown]}


def _has(tags: Sequence[tuple[str, str]], wanted: Mapping[str, set[str]]) -> bool:
    return all(
        any(key in {"*", tag} and ("*" in values or value in values) for tag, value in tags)
        for key, values in wanted.items()
    )
