"""Time series in the state server: one stream per metric, limited to a window of time.

A sample is a reading of one metric at one time, with its tags; a probe's sample has one value for each repeat.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import Command, FencedWriter
from laggard.kvstore.client.retry import RETRY_FOR_S, RetryPolicy

WINDOW_S = 300.0  # `default_tmdb_window`'s default: docs/telemetry.md


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading."""

    metric: str
    time_s: float  # Unix time of the reading
    values: tuple[float, ...]  # the value, or one value for each repeat
    # What it was read from, for example `{"host": "node1", "gpu": "0"}`
    tags: dict[str, str] = field(default_factory=dict)


class Series:
    """The samples of one job. Writes are fenced; samples older than five minutes are deleted.

    :meth:`add`, :meth:`read` and :meth:`last_id` wait for a server that is being restarted; a batch whose reply was
    lost may then be stored twice.
    """

    def __init__(
        self,
        client: redis.Redis,
        endpoint: Endpoint,
        launch: int,
    ) -> None:
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
            ("XADD", self._key(sample.metric), "MINID", "~", oldest, "*", "sample", _to_json(sample))
            for sample in samples
        ]
        names = sorted({sample.metric for sample in samples})
        commands.append(("SADD", self._endpoint.key("metrics"), *names))
        return commands

    def metrics(self) -> set[str]:
        """Return the names of the metrics that have samples."""
        names = cast("set[bytes]", self._client.smembers(self._endpoint.key("metrics")))
        return {name.decode() for name in names}

    def read(self, metric: str, after: str = "-", *, limit: int | None = None) -> list[tuple[str, Sample]]:
        """Return ``(id, sample)`` pairs in the order written, from after the sample with the given id on."""
        start = after if after == "-" else f"({after}"
        find = self._client.xrange
        entries = cast("list[Any]", self._retry.call(lambda: find(self._key(metric), start, "+", count=limit)))
        return [(entry_id.decode(), _from_json(metric, fields[b"sample"])) for entry_id, fields in entries]

    def last_id(self, metric: str) -> str:
        """Return the id of the newest sample, or ``-`` if there is none."""
        newest = cast("Any", self._retry.call(lambda: self._client.xrevrange(self._key(metric), count=1)))
        return newest[0][0].decode() if newest else "-"

    def _key(self, metric: str) -> str:
        return self._endpoint.key("series", metric)


def _to_json(sample: Sample) -> str:
    return json.dumps([sample.time_s, sample.values, sample.tags])


def _from_json(metric: str, text: bytes) -> Sample:
    try:
        time_s, values, tags = orjson.loads(text)
    except orjson.JSONDecodeError:  # a failed reading is NaN, which only the standard library's parser accepts
        time_s, values, tags = json.loads(text)
    return Sample(metric, time_s, tuple(values), tags)
