"""Batches of samples, and how a process sends them to its node's store over a socket in the node's private folder.

A batch is its length in four bytes, followed by one value of :mod:`laggard.kvstore.values.codec`: nothing that is
received can run code. Only the job's owner can open the folder, so whoever can connect may write. :class:`Ingest`
receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.series.sample_store import SeriesKey
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.kvstore.values.codec import decode, encode

Batch = Mapping[SeriesKey, tuple[Times, Floats]]

LENGTH = struct.Struct("<I")
MAX_BATCH_BYTES = 64 << 20
STOP_DEADLINE_S = 2.0
BACKLOG = 256
_NAME = "a batch of samples"  # for the codec's errors

_log = logging.getLogger("laggard.telemetry")


def socket_name(node: str) -> str:
    """Return the name of a node's socket in its private folder."""
    return f"telemetry-{node}.sock"


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path to a socket that is short enough for the kernel, wherever its folder is."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def encode_batch(batch: Batch) -> bytes:
    """Return the batch as it is sent over the socket."""
    empty = np.empty(0)
    value = {
        "series": [
            [metric, [part for pair in tags for part in pair], len(times)]
            for (metric, tags), (times, _) in batch.items()
        ],
        "times_us": np.concatenate([times for times, _ in batch.values()] or [empty.astype(np.int64)]),
        "values": np.concatenate([values for _, values in batch.values()] or [empty]),
    }
    encoded = encode(_NAME, value)
    return b"".join((LENGTH.pack(encoded.nbytes), *encoded.parts))


def decode_batch(body: bytes) -> Batch:
    """Return the batch that was received; ``body`` is without the length."""
    try:
        value = decode(_NAME, [body])
        times_us, values = value["times_us"].astype(np.int64), value["values"].astype(np.float64)
        return _split(value["series"], times_us, values)
    except (KVStoreError, AttributeError, KeyError, IndexError, TypeError, struct.error) as error:
        raise ValueError(f"not a batch of samples: {error!r}") from error


def _split(series: list[Any], times_us: Times, values: Floats) -> Batch:
    if sum(count for _, _, count in series) != len(times_us) or len(times_us) != len(values):
        raise ValueError("not a batch of samples: the counts do not add up")
    batch, begin = {}, 0
    for metric, flat_tags, count in series:
        if count < 0 or not all(isinstance(part, str) for part in (metric, *flat_tags)):
            raise ValueError("not a batch of samples: names must be text, and counts not negative")
        end = begin + count
        batch[metric, tuple(zip(flat_tags[::2], flat_tags[1::2], strict=True))] = times_us[begin:end], values[begin:end]
        begin = end
    return batch


class Ingest:
    """Receives batches on a socket during the ``with`` block, in its own thread."""

    def __init__(self, path: Path, take: Callable[[Batch], None]) -> None:
        self._path = path  # the socket, in a folder that only its owner can open
        self._take = take  # called with each batch
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

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(STOP_DEADLINE_S)
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        try:
            self._path.unlink(missing_ok=True)  # left by an agent that was killed
            with short_path(self._path) as path:
                server = await asyncio.start_unix_server(self._receive, path, backlog=BACKLOG)
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
            pass  # the process has exited, or this one is stopping
        except ValueError as error:
            _log.warning("dropped what a process sent: %s", error)
        finally:
            writer.close()


def _checked(length: int) -> int:
    if length > MAX_BATCH_BYTES:
        raise ValueError(f"a batch of {length} bytes is too large")
    return length
