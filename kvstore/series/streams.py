"""Time series in the state server: one stream per metric, limited to a window of time.

A sample is a reading of one metric at one time, with its tags; a probe's sample has one value for each repeat. It is
stored with the node of the process that writes it, which is believed about that node only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import orjson
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.environment import own_node
from laggard.kvstore.client.fence import Command, FencedWriter
from laggard.kvstore.client.retry import RETRY_FOR_S, RetryPolicy

WINDOW_S = 300.0  # `default_tmdb_window`'s default: docs/telemetry.md
# Of a sample: a report of links has 3 KB at most, and so many values have 20.
MAX_TEXT_BYTES = 32 << 10
MAX_VALUES = 1000
_LATEST_S = 1e11
_SHOWN_BYTES = 80

Why = Literal["malformed", "of another node", "not of the launch", "too many"]
"""Why something that was written in place of a sample is refused."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading."""

    metric: str
    time_s: float  # Unix time of the reading
    values: tuple[float, ...]  # the value, or one value for each repeat
    # What it was read from, for example `{"host": "node1", "gpu": "0"}`
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """What was written in place of a sample: on which node, as far as that is known, and what it said."""

    node: str
    why: Why
    example: str


class Series:
    """The samples of one job. Writes are fenced; samples older than five minutes are deleted.

    :meth:`add`, :meth:`read` and :meth:`last_id` wait for a server that is being restarted; a batch whose reply was
    lost may then be stored twice.
    """

    def __init__(self, client: redis.Redis, endpoint: Endpoint, launch: int, node: str | None = None) -> None:
        self._node = own_node() if node is None else node  # of which samples are written
        self._client = client
        self._endpoint = endpoint
        self._writer = FencedWriter(client, endpoint, launch)
        self._retry = RetryPolicy(endpoint, RETRY_FOR_S)

    def add(self, samples: Sequence[Sample]) -> None:
        """Store samples in one atomic step."""
        if samples:
            commands = self.commands(samples)
            self._retry.call(lambda: self._writer.execute(commands))

    def commands(self, samples: Sequence[Sample]) -> list[Command]:
        """Return the commands that store samples."""
        oldest = str(int((time.time() - WINDOW_S) * 1000))
        commands: list[Command] = [
            (
                "XADD",
                self._key(sample.metric),
                "MINID",
                "~",
                oldest,
                "*",
                "node",
                self._node,
                "sample",
                _to_json(sample),
            )
            for sample in samples
        ]
        names = sorted({sample.metric for sample in samples})
        commands.append(("SADD", self._endpoint.key("metrics"), *names))
        return commands

    def metrics(self) -> set[str]:
        """Return the names of the metrics that have samples."""
        names = cast("set[bytes]", self._client.smembers(self._endpoint.key("metrics")))
        return {name.decode(errors="replace") for name in names}

    def read(self, metric: str, after: str = "-", *, limit: int | None = None) -> list[tuple[str, Sample | Refused]]:
        """Return ``(id, sample)`` pairs in the order written, from after the sample with the given id on."""
        start = after if after == "-" else f"({after}"
        find = self._client.xrange
        entries = cast("list[Any]", self._retry.call(lambda: find(self._key(metric), start, "+", count=limit)))
        return [(entry_id.decode(), _sample_of(metric, fields)) for entry_id, fields in entries]

    def last_id(self, metric: str) -> str:
        """Return the id of the newest sample, or ``-`` if there is none."""
        newest = cast("Any", self._retry.call(lambda: self._client.xrevrange(self._key(metric), count=1)))
        return newest[0][0].decode() if newest else "-"

    def _key(self, metric: str) -> str:
        return self._endpoint.key("series", metric)


def _to_json(sample: Sample) -> str:
    content = [sample.time_s, sample.values, sample.tags]
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY).decode()  # NaN as null


def _sample_of(metric: str, fields: Mapping[bytes, bytes]) -> Sample | Refused:
    """Return the sample of an entry, in which a process of the job may have written anything."""
    node, text = fields.get(b"node", b"").decode(errors="replace"), fields.get(b"sample", b"")
    try:
        time_s, values, tags = orjson.loads(text if len(text) <= MAX_TEXT_BYTES else b"")
        numbers = tuple(values) if {*map(type, values)} == {float} else tuple(map(_number, values))
        sample = Sample(metric, _number(time_s), numbers, tags)
        is_sound = 0 <= sample.time_s < _LATEST_S and 0 < len(values) <= MAX_VALUES
    except (ValueError, TypeError):
        is_sound = False
    if not is_sound or type(tags) is not dict or {*map(type, tags.values())} != {str}:
        return Refused(node, "malformed", text[:_SHOWN_BYTES].decode(errors="replace"))
    if tags.get("host") != node:
        return Refused(node, "of another node", str(tags.get("host"))[:_SHOWN_BYTES])
    return sample


def _number(value: object) -> float:
    """Return a number that was read from JSON, which has none but finite ones."""
    if value is None:
        return math.nan
    if type(value) not in (float, int):
        raise ValueError("not a number")
    return float(cast("float", value))
