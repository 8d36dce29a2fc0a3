"""Answers to queries as JSON, in the forms that each era of Grafana reads.

A value is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go back end
would draw 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from telemetry.events import Event
from telemetry.query.engine import Answer
from telemetry.query.parsing import Query, SubQuery
from telemetry.query.times import SECOND_US

__all__ = ["annotation", "answer_element"]


def answer_element(query: Query, sub_query: SubQuery, answer: Answer, events: Sequence[Event]) -> dict[str, Any]:
    """Return one element of the answer to ``/api/query``."""
    element: dict[str, Any] = {
        "metric": answer.metric,
        "tags": answer.tags,
        "aggregateTags": answer.aggregate_tags,
        "dps": _points(query, sub_query, answer),
    }
    if query.show_query:
        element["query"] = {**sub_query.source, "index": sub_query.index}
    if events:
        element["globalAnnotations"] = [annotation(event) for event in events]
    return element


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


def _points(query: Query, sub_query: SubQuery, answer: Answer) -> Any:
    finite = np.isfinite(answer.values)
    values: Sequence[float | None] = answer.values.tolist()
    times_us = answer.times_us
    if not finite.all():
        if query.nulls and sub_query.downsample is not None and sub_query.downsample.fill is not None:
            values = [value if there else None for value, there in zip(values, finite.tolist(), strict=True)]
        else:
            values, times_us = answer.values[finite].tolist(), times_us[finite]
    unit_us = 1000 if query.milliseconds else SECOND_US
    if query.arrays:
        times = (times_us // unit_us).tolist()
        return [[time, value] for time, value in zip(times, values, strict=True)]
    return dict(zip(_keys(times_us.tobytes(), unit_us), values, strict=True))


@lru_cache(maxsize=4)
def _keys(times_us: bytes, unit_us: int) -> list[str]:
    """Return times as JSON keys; the lines of an answer mostly share theirs."""
    return [str(time) for time in (np.frombuffer(times_us, dtype=np.int64) // unit_us).tolist()]
