"""Samples from outside: ``POST /api/put``, and lines of ``put`` as telegraf, collectd and tcollector send them.

Lines come over a plain connection without a password, so the port for them is off by default.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.errors import BadQueryError, PointError
from laggard.telemetry.query.times import SECOND_US, parse_time
from laggard.telemetry.sending.batches import Batch

__all__ = [
    "MAX_LINE_BYTES",
    "LineHandler",
    "Point",
    "batch_of",
    "line_handler",
    "point_from_json",
    "point_from_line",
    "require_recent",
]

MAX_TAGS = 8
MAX_AHEAD_S = 60.0
MAX_NAME = 256
# OpenTSDB's rule for names; \w is any letter or digit of any script, and _.
_NAME = re.compile(r"[\w\-./]+")
_HTTP = re.compile(r" HTTP/[0-9.]+$")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

MAX_LINE_BYTES = 1024
LINE_IDLE_S = 300.0
MAX_LINE_CONNECTIONS = 64
LINE_HELP = b"available commands: exit help put stats version\n"
LINE_VERSION = b"laggard, with the put and version commands of OpenTSDB 2.4.0\n"
LineHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Handles a connection."""


@dataclass(frozen=True, slots=True)
class Point:
    """One validated sample."""

    key: SeriesKey
    time_us: int
    value: float


def point_from_json(body: object) -> Point:
    """Parse one element of the body of ``/api/put``.

    Raises
    ------
    PointError
        If it is not a valid sample; the message says why.
    """
    if not isinstance(body, dict):
        raise PointError("a sample must be a JSON object")
    tags = body.get("tags")
    if not isinstance(tags, dict):
        raise PointError("tags must be a JSON object")
    return _point(body.get("metric"), body.get("timestamp"), body.get("value"), tags)


def point_from_line(line: str) -> Point:
    """Parse ``put <metric> <time> <value> <tag>=<value> ...``; words are separated by any white space.

    Raises
    ------
    PointError
        If it is not a valid sample; the message says why.
    """
    words = line.split()
    if len(words) < 5 or words[0] != "put":
        raise PointError("not put <metric> <time> <value> <tag>=<value> ...")
    pairs = [word.partition("=") for word in words[4:]]
    if not all(equals for _, equals, _ in pairs):
        raise PointError("a tag must be <tag>=<value>")
    return _point(words[1], words[2], words[3], {key: value for key, _, value in pairs})


def require_recent(point: Point, window_s: float) -> Point:
    """Return a sample that nodes would keep, and that is not of the future.

    One of the future would stay the newest of its series until its time has come.

    Raises
    ------
    PointError
        If it is older than what they keep, or further ahead of this node's clock than clocks usually are apart.
    """
    age_s = time.time() - point.time_us / SECOND_US
    if age_s > window_s:
        reason = f"the sample is older than the {window_s:g} s that nodes keep: raise the setting default_tmdb_window"
        raise PointError(reason)
    if age_s < -MAX_AHEAD_S:
        raise PointError(f"the sample's time is {-age_s:.0f} s ahead of the clock here: set the sender's clock")
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
        raise PointError(f"a sample must have 1 to {MAX_TAGS} tags")
    for part in (metric, *tags, *tags.values()):
        if not isinstance(part, str) or len(part) > MAX_NAME or not _NAME.fullmatch(part):
            raise PointError(f"{str(part)[:80]!r} is not a valid name: use letters, digits and - _ . / only")
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
        raise PointError(f"the value {str(value)[:40]!r} is not a finite number")
    return number


def line_handler(put: Callable[[Batch], bool], window_s: float) -> LineHandler:
    """Return a handler of connections that carry lines. As in OpenTSDB, success is silent and an error is one line.

    Parameters
    ----------
    put
        Stores samples and returns whether that worked.
    window_s
        How long nodes keep samples; older ones are refused.
    """
    open_connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            if open_connections > MAX_LINE_CONNECTIONS:
                writer.write(b"too many connections\n")
            else:
                await _read_lines(reader, writer, put, window_s)
        except (OSError, ValueError, TimeoutError):
            pass  # the client disconnected, was idle, or sent too long a line
        finally:
            open_connections -= 1
            writer.close()

    return handle


async def _read_lines(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, put: Callable[[Batch], bool], window_s: float
) -> None:
    while True:
        async with asyncio.timeout(LINE_IDLE_S):
            line = (await reader.readline()).decode("utf-8", "replace").strip()
        if line == "exit" or (not line and reader.at_eof()):
            return
        if _HTTP.search(line):  # a browser, in whose request's body any page could put lines
            writer.write(b"this is not a port for HTTP\n")
            return
        if answer := await _answer(line, put, window_s):
            writer.write(answer)
            await writer.drain()


async def _answer(line: str, put: Callable[[Batch], bool], window_s: float) -> bytes:
    match line.split(maxsplit=1)[:1]:
        case []:
            return b""
        case ["put"]:
            try:
                batch = batch_of([require_recent(point_from_line(line), window_s)])
            except PointError as error:
                return f"put: illegal argument: {error}\n".encode()
            stored = await asyncio.to_thread(put, batch)
            return b"" if stored else b"put: the node's store is not accepting samples\n"
        case ["version"]:
            return LINE_VERSION
        case ["stats"]:
            return b"laggard.up 1\n"
        case ["help"]:
            return LINE_HELP
        case [word]:
            return f"unknown command: {word[:40]}. Try `help'.\n".encode()
    raise AssertionError(line)
