"""Answers to queries as JSON, in the forms that each era of Grafana reads.

A value is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go back end
would draw 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any

import numpy as np

from telemetry.events import Event
from telemetry.query.engine import Answer
from telemetry.query.parsing import Query, SubQuery
from telemetry.query.times import SECOND_US

__all__ = ["annotation", "answer_element", "to_json"]


def answer_element(query: Query, sub_query: SubQuery, answer: Answer, events: Sequence[Event]) -> str:
    """Return one element of the answer to ``/api/query``, as JSON text.

    The points are written here: most of an answer are numbers, and the encoder would look at each key and value anew.
    """
    about: dict[str, Any] = {"metric": answer.metric, "tags": answer.tags, "aggregateTags": answer.aggregate_tags}
    if query.show_query:
        about["query"] = {**sub_query.source, "index": sub_query.index}
    if events:
        about["globalAnnotations"] = [annotation(event) for event in events]
    points = ",".join(_points(query, sub_query, answer))
    dps = f"[{points}]" if query.arrays else f"{{{points}}}"
    return f'{to_json(about)[:-1]},"dps":{dps}}}'


def to_json(value: Any) -> str:
    """Return strict and compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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


def _points(query: Query, sub_query: SubQuery, answer: Answer) -> Iterable[str]:
    finite = np.isfinite(answer.values)
    texts: Iterable[str] = map(repr, answer.values.tolist())
    times_us = answer.times_us
    if not finite.all():
        if query.nulls and sub_query.downsample is not None and sub_query.downsample.fill is not None:
            texts = (text if there else "null" for text, there in zip(texts, finite.tolist(), strict=True))
        else:
            texts, times_us = map(repr, answer.values[finite].tolist()), times_us[finite]
    unit_us = 1000 if query.milliseconds else SECOND_US
    if query.arrays:
        return (f"[{time},{text}]" for time, text in zip((times_us // unit_us).tolist(), texts, strict=True))
    return map(add, _keys(times_us.tobytes(), unit_us), texts)


@lru_cache(maxsize=4)
def _keys(times_us: bytes, unit_us: int) -> list[str]:
    """Return times as the keys of a JSON object; the lines of an answer mostly share theirs."""
    return [f'"{time}":' for time in (np.frombuffer(times_us, dtype=np.int64) // unit_us).tolist()]
