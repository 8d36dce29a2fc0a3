"""The newest lines that the program wrote to standard error, each with its moment and its rank, in the state server."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.records import plain, record_of

MAX_LINES = 2_000
_STREAM = "error-lines"


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """One line."""

    time_us: int  # Unix time in microseconds at which the controller had it
    host: str
    rank: int | None  # None: the program is one process on its node, or starts ranks itself
    text: str


def publish(client: redis.Redis, endpoint: Endpoint, lines: Collection[ErrorLine]) -> None:
    """Write lines."""
    with client.pipeline(transaction=False) as pipeline:
        for line in lines:
            pipeline.xadd(endpoint.key(_STREAM), {"line": json.dumps(plain(line))}, maxlen=MAX_LINES, approximate=True)
        pipeline.execute()


def lines_since(client: redis.Redis, endpoint: Endpoint, start_us: int) -> list[ErrorLine]:
    """Return the lines from a time on."""
    found = cast("list[Any]", client.xrange(endpoint.key(_STREAM), str(start_us // 1_000)))  # they are written later
    lines = [record_of(ErrorLine, json.loads(fields[b"line"])) for _, fields in found]
    return [line for line in lines if line.time_us >= start_us]
