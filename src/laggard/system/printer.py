"""Writing to terminals and files in a thread, so that nothing else waits for a terminal that is slow or stopped."""

from __future__ import annotations

import contextlib
import io
import queue
import select
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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


class _Unbuffered(io.FileIO):
    """A stream's file without the buffer, whose lock a thread that waits for a terminal would keep."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.fileno(), "wb", closefd=False)
        self._stream = stream

    def write(self, data: ReadableBuffer, /) -> int:
        if self._stream.closed:  # its number may be that of a connection by now
            raise ValueError("the stream is closed")
        return super().write(data)


def unbuffered(stream: TextIO) -> BinaryIO:
    """Return what writes to a stream's file at once, as long as the stream is open."""
    try:
        return cast("BinaryIO", _Unbuffered(stream))
    except OSError:  # it is not a file
        return stream.buffer


def _write(stream: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        n_written = stream.write(rest)
        if not n_written:  # it does not wait, and is full
            select.select([], [stream], [])
        rest = rest[n_written or 0 :]
    stream.flush()
