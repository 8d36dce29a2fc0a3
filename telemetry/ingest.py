"""The door of a node's store: takes the batches that the node's processes send."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from telemetry.batches import LENGTH, MAX_BATCH_BYTES, Batch, decode_batch, short_path

__all__ = ["Ingest"]

_log = logging.getLogger("laggard.telemetry")

STOP_DEADLINE_S = 2.0
MAX_WAITING = 256


class Ingest:
    """Listens on a socket for as long as the ``with`` block lasts, in a thread of its own.

    Parameters
    ----------
    path
        The socket; its folder must be open to the owner only.
    take
        Is given each batch.
    """

    def __init__(self, path: Path, take: Callable[[Batch], None]) -> None:
        self._path = path
        self._take = take
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._listening = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry-ingest", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(STOP_DEADLINE_S)
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        try:
            self._path.unlink(missing_ok=True)  # of an agent that was killed
            with short_path(self._path) as path:
                server = await asyncio.start_unix_server(self._receive, path, backlog=MAX_WAITING)
        except OSError as failure:
            self._failure = failure
            return
        finally:
            self._listening.set()
        self._path.chmod(0o600)
        async with server:
            await self._ended.wait()
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._take(decode_batch(await reader.readexactly(_checked(length))))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the process has gone, or we are going
        except ValueError as error:
            _log.warning("a process sent what is %s", error)
        finally:
            writer.close()


def _checked(length: int) -> int:
    if length > MAX_BATCH_BYTES:
        raise ValueError(f"a batch of {length} bytes, which is too large")
    return length
