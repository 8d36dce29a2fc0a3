"""Samples from outside: ``POST /api/put`` and lines of ``put``, as telegraf, collectd and tcollector send them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore.store import SeriesKey, key_of
from kvstore.timeseries import Floats, Times
from telemetry.query.errors import BadQueryError
from telemetry.query.times import parse_time

__all__ = ["Point", "PointError", "batch_of", "point_from_json", "point_from_line"]

MAX_TAGS = 8
MAX_NAME = 256
# OpenTSDB's rule for names; \w is any letter or digit of any script, and _.
_NAME = re.compile(r"[\w\-./]+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class PointError(ValueError):
    """What was sent is no sample; the message says why."""


@dataclass(frozen=True, slots=True)
class Point:
    """One sample that has been checked."""

    key: SeriesKey
    time_us: int
    value: float


def point_from_json(body: object) -> Point:
    """Read one element of the body of ``/api/put``.

    Raises
    ------
    PointError
        If it is no sample; the message says why.
    """
    if not isinstance(body, dict):
        raise PointError("a sample must be a JSON object")
    tags = body.get("tags")
    if not isinstance(tags, dict):
        raise PointError("tags must be a JSON object")
    return _point(body.get("metric"), body.get("timestamp"), body.get("value"), tags)


def point_from_line(line: str) -> Point:
    """Read ``put <metric> <time> <value> <tag>=<value> ...``; any run of blanks divides the words.

    Raises
    ------
    PointError
        If it is no sample; the message says why.
    """
    words = line.split()
    if len(words) < 5 or words[0] != "put":
        raise PointError("not put <metric> <time> <value> <tag>=<value> ...")
    pairs = [word.partition("=") for word in words[4:]]
    if not all(equals for _, equals, _ in pairs):
        raise PointError("a tag must be <tag>=<value>")
    return _point(words[1], words[2], words[3], {key: value for key, _, value in pairs})


def batch_of(points: Iterable[Point]) -> dict[SeriesKey, tuple[Times, Floats]]:
    """Sort samples by series."""
    lines: dict[SeriesKey, tuple[list[int], list[float]]] = {}
    for point in points:
        times, values = lines.setdefault(point.key, ([], []))
        times.append(point.time_us)
        values.append(point.value)
    return {key: (np.array(times, dtype=np.int64), np.array(values)) for key, (times, values) in lines.items()}


def _point(metric: Any, timestamp: Any, value: Any, tags: Mapping[Any, Any]) -> Point:
    if not 1 <= len(tags) <= MAX_TAGS:
        raise PointError(f"a sample must have 1 to {MAX_TAGS} tags")
    for part in (metric, *tags, *tags.values()):
        if not isinstance(part, str) or len(part) > MAX_NAME or not _NAME.fullmatch(part):
            raise PointError(f"{str(part)[:80]!r} is no name: letters, digits and - _ . / only")
    try:
        time_us = parse_time(timestamp, now_us=0)
    except BadQueryError as error:
        raise PointError(f"timestamp: {error}") from error
    if time_us == 0:
        raise PointError("timestamp must be above 0")
    return Point(key_of(metric, tags), time_us, _number(value))


def _number(value: object) -> float:
    if isinstance(value, str):
        readable = len(value) < 64 and _NUMBER.fullmatch(value) is not None
    else:
        readable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308
    if not readable or not math.isfinite(number := float(value)):  # type: ignore[arg-type]
        raise PointError(f"the value {str(value)[:40]!r} is no finite number")
    return number
