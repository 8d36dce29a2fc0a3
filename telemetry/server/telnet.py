"""Lines of ``put`` over a plain connection, as collectd and tcollector write them: no passwords, so off by default."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from telemetry.batches import Batch
from telemetry.server.put import PointError, batch_of, point_from_line

__all__ = ["listen_for_lines"]

MAX_LINE_BYTES = 1024
IDLE_S = 300.0
MAX_CONNECTIONS = 64
HELP = b"available commands: exit help put stats version\n"
VERSION = b"laggard, with the put and version commands of OpenTSDB 2.4.0\n"


@contextlib.asynccontextmanager
async def listen_for_lines(host: str, port: int, put: Callable[[Batch], bool]) -> AsyncIterator[asyncio.Server]:
    """Listen for as long as the block lasts. Success is silent, as OpenTSDB's; an error is one line."""
    places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with places:
            try:
                await _obey(reader, writer, put)
            except (OSError, ValueError, TimeoutError):
                pass  # it went away, fell asleep, or sent a line without end
            finally:
                writer.close()

    server = await asyncio.start_server(receive, host, port, limit=MAX_LINE_BYTES)
    async with server:
        yield server


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
