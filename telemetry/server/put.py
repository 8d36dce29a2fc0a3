"""Samples from outside: ``POST /api/put``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.errors import BadQueryError
from laggard.telemetry.query.parsing import finite_number
from laggard.telemetry.query.times import SECOND_US, parse_time
from laggard.telemetry.sending.numbers import AHEAD_S, NOT_IN_JOB, oldest_s

MAX_TAGS = 8
MAX_NAME = 256
# OpenTSDB's rule for names; \w is any letter or digit of any script, and _.
_NAME = re.compile(r"[\w\-./]+")


@dataclass(frozen=True, slots=True)
class Point:
    """One validated sample."""

    key: SeriesKey
    time_us: int
    value: float


def point_from_json(body: object) -> Point:
    """Parse one element of the body of ``/api/put``."""
    if not isinstance(body, dict):
        raise BadQueryError("a sample must be a JSON object")
    tags = body.get("tags")
    if not isinstance(tags, dict):
        raise BadQueryError("tags must be a JSON object")
    return _point(body.get("metric"), body.get("timestamp"), body.get("value"), tags)


def require_in_job(point: Point, began_s: float) -> Point:
    """Return a sample that is of the job's time and of the last day, as in :mod:`laggard.telemetry.sending.numbers`."""
    # One of the future would stay the newest of its series until its time has come.
    now_s, time_s = time.time(), point.time_us / SECOND_US
    if time_s < oldest_s(began_s, now_s):
        raise BadQueryError(f"the sample's time is {NOT_IN_JOB}")
    if time_s > now_s + AHEAD_S:
        raise BadQueryError(
            f"the sample's time is {time_s - now_s:.0f} s ahead of the clock here: set the sender's clock"
        )
    return point


def batch_of(points: Iterable[Point]) -> dict[SeriesKey, tuple[Times, Floats]]:
    """Group samples by series."""
    series: dict[SeriesKey, tuple[list[int], list[float]]] = {}
    for point in points:
        times, values = series.setdefault(point.key, ([], []))
        times.append(point.time_us)
        values.append(point.value)
    return {key: (np.array(times, dtype=np.int64), np.array(values)) for key, (times, values) in series.items()}


def _point(metric: Any, timestamp: Any, value: Any, tags: Mapping[Any, Any]) -> Point:
    if not 1 <= len(tags) <= MAX_TAGS:
        raise BadQueryError(f"a sample must have 1 to {MAX_TAGS} tags")
    for part in (metric, *tags, *tags.values()):
        if not isinstance(part, str) or len(part) > MAX_NAME or not _NAME.fullmatch(part):
            raise BadQueryError(f"{str(part)[:80]!r} is not a valid name: use letters, digits and - _ . / only")
    if (time_us := parse_time(timestamp, now_us=0)) == 0:
        raise BadQueryError("timestamp must be above 0")
    if (number := finite_number(value)) is None:
        raise BadQueryError(f"the value {str(value)[:40]!r} is not a finite number")
    return Point(key_of(metric, tags), time_us, number)
