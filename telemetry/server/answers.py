"""Answers to queries as JSON, in the forms that each era of Grafana reads.

A value is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go back end
would draw 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from kvstore.timeseries import Floats, Times
from telemetry.events import Event
from telemetry.query.engine import Answer
from telemetry.query.parsing import Query, SubQuery
from telemetry.query.times import SECOND_US

__all__ = ["annotation", "answers_to_json", "to_json"]


def answers_to_json(query: Query, answers: Iterable[tuple[SubQuery, Answer]], events: Sequence[Event]) -> bytes:
    """Return the answer to ``/api/query``.

    The first element carries the events: with all of them on every line a client would draw each many times.
    """
    points = _Points(query)
    elements: list[dict[str, Any]] = []
    for sub_query, answer in answers:
        about: dict[str, Any] = {"metric": answer.metric, "tags": answer.tags, "aggregateTags": answer.aggregate_tags}
        if query.show_query:
            about["query"] = {**sub_query.source, "index": sub_query.index}
        if events and not elements:
            about["globalAnnotations"] = [annotation(event) for event in events]
        about["dps"] = orjson.Fragment(points.write(sub_query, answer.times_us, answer.values))
        elements.append(about)
    return to_json(elements)


def to_json(value: Any) -> bytes:
    """Return strict and compact JSON."""
    return orjson.dumps(value)


def annotation(event: Event) -> dict[str, Any]:
    """Return an event as OpenTSDB's annotation."""
    custom: Mapping[str, str] = {"kind": event.kind, "host": event.host, "gpu": event.gpu}
    return {
        "description": f"{event.kind}: {event.text}",
        "notes": "",
        "startTime": event.time_us // SECOND_US,
        "endTime": 0,
        "custom": {key: value for key, value in custom.items() if value},
    }


class _Points:
    """Writes the points of one line after the other; lines mostly share their times, and the text of these."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._unit_us = 1000 if query.milliseconds else SECOND_US
        self._empty, self._end = ("[]", "]]") if query.arrays else ("{}", "}")
        self._times_us: Times | None = None
        self._pieces: list[str] = []

    def write(self, sub_query: SubQuery, times_us: Times, values: Floats) -> str:
        # The numbers are written in one go, and cut into pieces between which the times go: a dict of all points
        # would cost as much again. What is not finite becomes null.
        numbers = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
        if "n" in numbers and not self._shows_missing(sub_query):
            finite = np.isfinite(values)
            return self.write(sub_query, times_us[finite], values[finite])
        if len(values) == 0:
            return self._empty
        if times_us is not self._times_us:
            self._times_us = times_us
            self._pieces = [self._end] * (2 * len(times_us) + 1)
            self._pieces[:-1:2] = _times(times_us.tobytes(), self._unit_us, arrays=self._query.arrays)
        self._pieces[1::2] = numbers[1:-1].split(",")
        return "".join(self._pieces)

    def _shows_missing(self, sub_query: SubQuery) -> bool:
        return self._query.nulls and sub_query.downsample is not None and sub_query.downsample.fill is not None


@lru_cache(maxsize=4)
def _times(times_us: bytes, unit_us: int, *, arrays: bool) -> list[str]:
    """Return what stands before each value; the lines of an answer mostly share their times."""
    first, other = ("[[%d,", "],[%d,") if arrays else ('{"%d":', ',"%d":')
    times = (np.frombuffer(times_us, dtype=np.int64) // unit_us).tolist()
    return [first % times[0], *(other % time for time in times[1:])]
