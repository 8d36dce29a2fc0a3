"""Lines of ``put`` over a plain connection, as collectd and tcollector write them: no passwords, so off by default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from telemetry.batches import Batch
from telemetry.server.put import PointError, batch_of, point_from_line

__all__ = ["MAX_LINE_BYTES", "TakeLines", "line_taker"]

MAX_LINE_BYTES = 1024
IDLE_S = 300.0
MAX_CONNECTIONS = 64
HELP = b"available commands: exit help put stats version\n"
VERSION = b"laggard, with the put and version commands of OpenTSDB 2.4.0\n"

TakeLines = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Takes a connection."""


def line_taker(put: Callable[[Batch], bool]) -> TakeLines:
    """Return what takes connections that carry lines. Success is silent, as OpenTSDB's; an error is one line."""
    taken = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        try:
            if taken > MAX_CONNECTIONS:
                writer.write(b"too many connections\n")
            else:
                await _obey(reader, writer, put)
        except (OSError, ValueError, TimeoutError):
            pass  # it went away, fell asleep, or sent a line without end
        finally:
            taken -= 1
            writer.close()

    return take


async def _obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, put: Callable[[Batch], bool]) -> None:
    while True:
        async with asyncio.timeout(IDLE_S):
            line = (await reader.readline()).decode("utf-8", "replace").strip()
        if line == "exit" or (not line and reader.at_eof()):
            return
        if answer := await _answer(line, put):
            writer.write(answer)
            await writer.drain()


async def _answer(line: str, put: Callable[[Batch], bool]) -> bytes:
    match line.split(maxsplit=1)[:1]:
        case []:
            return b""
        case ["put"]:
            try:
                batch = batch_of([point_from_line(line)])
            except PointError as error:
                return f"put: illegal argument: {error}\n".encode()
            stored = await asyncio.to_thread(put, batch)
            return b"" if stored else b"put: the node's store does not take samples now\n"
        case ["version"]:
            return VERSION
        case ["stats"]:
            return b"laggard.up 1\n"
        case ["help"]:
            return HELP
        case [word]:
            return f"unknown command: {word[:40]}. Try `help'.\n".encode()
    raise AssertionError(line)
