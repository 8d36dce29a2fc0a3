"""Writing to terminals and files in a thread, so that nothing else waits for a terminal that is slow or stopped."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable, Mapping
from typing import BinaryIO, TextIO, cast


class Printer:
    """Writes to some streams, in order; output that cannot be written, because a stream is closed, is dropped."""

    def __init__(self, streams: Mapping[str, BinaryIO]) -> None:
        self._streams = streams  # where to write, by name
        self._queue: queue.SimpleQueue[tuple[str, bytes, Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._print, name="printer", daemon=True).start()

    def add(self, stream: str, data: bytes, printed: Callable[[], None] = lambda: None) -> None:
        """Queue something; ``printed`` is called once it is written."""
        self._queue.put((stream, data, printed))

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything is written; return whether it was in time."""
        drained = threading.Event()
        self.add("", b"", drained.set)
        return drained.wait(deadline_s)

    def _print(self) -> None:
        while True:
            stream, data, printed = self._queue.get()
            with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed here
                if data:
                    _write(self._streams[stream], data)
            printed()


def unbuffered(stream: TextIO) -> BinaryIO:
    """Return a stream's file without the buffer, whose lock a thread that waits for a terminal would keep."""
    try:
        descriptor = stream.fileno()
    except OSError:  # it is no file
        return stream.buffer
    # By a number of its own: once the stream is closed, its number may be that of a connection.
    return cast("BinaryIO", os.fdopen(os.dup(descriptor), "wb", buffering=0))


def _write(stream: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        n_written = stream.write(rest)
        if not n_written:  # it does not wait, and is full
            select.select([], [stream], [])
        rest = rest[n_written or 0 :]
    stream.flush()
