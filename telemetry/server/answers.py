"""Answers to queries as JSON, in the forms that each era of Grafana reads.

A value is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go back end
would draw 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from telemetry.events import Event
from telemetry.query.engine import Answer
from telemetry.query.parsing import Query, SubQuery
from telemetry.query.times import SECOND_US

__all__ = ["annotation", "answer_element", "to_json"]


def answer_element(query: Query, sub_query: SubQuery, answer: Answer, events: Sequence[Event]) -> bytes:
    """Return one element of the answer to ``/api/query``, as JSON."""
    about: dict[str, Any] = {"metric": answer.metric, "tags": answer.tags, "aggregateTags": answer.aggregate_tags}
    if query.show_query:
        about["query"] = {**sub_query.source, "index": sub_query.index}
    if events:
        about["globalAnnotations"] = [annotation(event) for event in events]
    about["dps"] = orjson.Fragment(_points(query, sub_query, answer))
    return to_json(about)


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


def _points(query: Query, sub_query: SubQuery, answer: Answer) -> bytes:
    times_us, values = answer.times_us, answer.values
    finite = np.isfinite(values)
    if not finite.all():
        spec = sub_query.downsample
        if not query.nulls or spec is None or spec.fill is None:
            times_us, values = times_us[finite], values[finite]
    if len(values) == 0:
        return b"[]" if query.arrays else b"{}"
    # The numbers are written in one go, and cut into pieces between which the times go: a dict of all points would
    # cost as much again. What is not finite becomes null.
    numbers = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    pieces = [b"]]" if query.arrays else b"}"] * (2 * len(values) + 1)
    pieces[:-1:2] = _times(times_us.tobytes(), 1000 if query.milliseconds else SECOND_US, arrays=query.arrays)
    pieces[1::2] = numbers[1:-1].split(b",")
    return b"".join(pieces)


@lru_cache(maxsize=4)
def _times(times_us: bytes, unit_us: int, *, arrays: bool) -> list[bytes]:
    """Return what stands before each value; the lines of an answer mostly share their times."""
    first, other = (b"[[%d,", b"],[%d,") if arrays else (b'{"%d":', b',"%d":')
    times = (np.frombuffer(times_us, dtype=np.int64) // unit_us).tolist()
    return [first % times[0], *(other % time for time in times[1:])]
