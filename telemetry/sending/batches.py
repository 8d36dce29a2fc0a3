"""Batches of samples, and how a process sends them to its node's store over a socket in the node's private folder.

A batch is its length in four bytes, followed by one value of :mod:`laggard.kvstore.values.codec`: nothing that is
received can run code. Only the job's owner can open the folder, so whoever can connect may write. :class:`Ingest`
receives.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.series.sample_store import SeriesKey
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.kvstore.values.codec import decode, encode

Batch = Mapping[SeriesKey, tuple[Times, Floats]]

LENGTH = struct.Struct("<I")
MAX_BATCH_BYTES = 64 << 20
# How often to see whether the end has come.
LOOK_S = 0.1
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
        "series": orjson.dumps([[metric, tags, len(times)] for (metric, tags), (times, _) in batch.items()]),
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
        return _split(orjson.loads(value["series"]), times_us, values)
    except (KVStoreError, AttributeError, KeyError, IndexError, TypeError, struct.error) as error:
        raise ValueError(f"not a batch of samples: {error!r}") from error


def _split(series: list[Any], times_us: Times, values: Floats) -> Batch:
    if sum(count for _, _, count in series) != len(times_us) or len(times_us) != len(values):
        raise ValueError("not a batch of samples: the counts do not add up")
    batch, begin = {}, 0
    for metric, pairs, count in series:
        tags = tuple([(key, value) for key, value in pairs])
        if count < 0 or not all(isinstance(part, str) for part in (metric, *chain.from_iterable(tags))):
            raise ValueError("not a batch of samples: names must be text, and counts not negative")
        end = begin + count
        batch[metric, tags] = times_us[begin:end], values[begin:end]
        begin = end
    return batch


class Ingest(socketserver.ThreadingUnixStreamServer):
    """Receives batches on a socket during the ``with`` block, each process in a thread of its own."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, path: Path, take: Callable[[Batch], None], give_way: Callable[[], object]) -> None:
        self._path = path  # the socket, in a folder that only its owner can open
        self.take = take  # called with each batch
        self.give_way = give_way  # called before each batch: as long as it waits, the samples stay with their sender
        # Held while a batch is decoded and taken: one thread, not sixteen, is in the way of other work, and has copies.
        self.turn = threading.Lock()
        self._open: set[socket.socket] = set()
        path.unlink(missing_ok=True)  # left by an agent that was killed
        with short_path(path) as short:
            super().__init__(short, _Batches)
        path.chmod(0o600)
        self._thread = threading.Thread(target=self.serve_forever, args=[LOOK_S], name="telemetry-ingest", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._path.unlink(missing_ok=True)
        for connection in self._open.copy():
            with contextlib.suppress(OSError):  # it has just been closed
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a process that has connected."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection of a process."""
        self._open.discard(request)
        super().shutdown_request(request)


class _Batches(socketserver.StreamRequestHandler):
    """Takes the batches of one process until it closes the connection."""

    server: Ingest

    def handle(self) -> None:
        try:
            while len(head := self.rfile.read(LENGTH.size)) == LENGTH.size:
                self.server.give_way()
                (length,) = LENGTH.unpack(head)
                body = self.rfile.read(min(length, MAX_BATCH_BYTES))
                if len(body) < length:
                    return  # the process was killed, or it sends too much at once
                with self.server.turn:
                    self.server.take(decode_batch(body))
        except ConnectionError:
            pass
        except ValueError as error:
            _log.warning("dropped what a process sent: %s", error)
