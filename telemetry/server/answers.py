"""Answers to queries as JSON, in the forms that each era of Grafana reads.

A value is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go back end
would draw 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

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


# Shorter lines are put together of pieces sooner than a table is made.
TABLE_FROM_POINTS = 128


@dataclass(frozen=True, slots=True)
class _Times:
    """What stands before each value: as pieces, and for many that are all as long as the columns of a table."""

    pieces: list[bytes]
    table: NDArray[np.uint8] | None

    def woven(self, numbers: bytes) -> bytes:
        """Return the points of values that are given as a JSON list."""
        n = len(self.pieces)
        width, rest = divmod(len(numbers) - 1, n)
        if rest == 0 and self.table is not None and numbers[width::width] == b"," * (n - 1) + b"]":
            # All with as many digits, as many sensors have them: columns, without a piece for each value.
            cells = np.frombuffer(numbers, dtype=np.uint8, offset=1).reshape(n, width)
            return np.concatenate((self.table, cells[:, :-1]), axis=1).tobytes()
        woven = [b""] * (2 * n)
        woven[::2], woven[1::2] = self.pieces, numbers[1:-1].split(b",")
        return b"".join(woven)


class _Points:
    """Writes the points of one line after the other; lines mostly share their times, and the text of these."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._unit_us = 1000 if query.milliseconds else SECOND_US
        self._times_us: Times | None = None
        self._times = _Times([], None)

    def write(self, sub_query: SubQuery, times_us: Times, values: Floats) -> bytes:
        # The numbers are written in one go, and the times put between them: a dict of all points would cost as much
        # again. What is not finite becomes null.
        numbers = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
        if b"n" in numbers and not self._shows_missing(sub_query):
            finite = np.isfinite(values)
            return self.write(sub_query, times_us[finite], values[finite])
        if len(values) == 0:
            return b"[]" if self._query.arrays else b"{}"
        if times_us is not self._times_us:
            self._times_us = times_us
            self._times = _times(times_us.tobytes(), self._unit_us, arrays=self._query.arrays)
        points = self._times.woven(numbers)
        return b"[" + points[2:] + b"]]" if self._query.arrays else b"{" + points[1:] + b"}"

    def _shows_missing(self, sub_query: SubQuery) -> bool:
        return self._query.nulls and sub_query.downsample is not None and sub_query.downsample.fill is not None


@lru_cache(maxsize=4)
def _times(times_us: bytes, unit_us: int, *, arrays: bool) -> _Times:
    before = b"],[%d," if arrays else b',"%d":'
    pieces = [before % time for time in (np.frombuffer(times_us, dtype=np.int64) // unit_us).tolist()]
    has_table = len(pieces) >= TABLE_FROM_POINTS and len({len(piece) for piece in pieces}) == 1
    return _Times(pieces, np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), -1) if has_table else None)
