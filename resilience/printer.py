"""What the copies of a program write, on the user's terminal: whole lines, each with its node's name before it."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import BinaryIO

__all__ = ["Lines", "Printer"]

LONGEST_LINE_BYTES = 1 << 16


class Lines:
    """Puts a stream's pieces together into whole lines. Pure.

    Parameters
    ----------
    prefix
        Stands before each line.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        """Return the lines that are complete with this piece; a line that is too long is broken."""
        lines = (self._rest + data).splitlines(keepends=True)
        # A carriage return ends a line too: a progress bar is to be seen as it moves.
        self._rest = b"" if not lines or lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        while len(self._rest) >= LONGEST_LINE_BYTES:
            lines.append(self._rest[:LONGEST_LINE_BYTES] + b"\n")
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        return b"".join(self._prefix + line for line in lines)

    def end(self) -> bytes:
        """Return what is left as a line."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""


class Printer:
    """Writes the output of copies; nobody who gives it something waits for the terminal.

    What cannot be written, since nobody reads our output any more, is dropped.

    Parameters
    ----------
    streams
        Where to write, by name.
    """

    def __init__(self, streams: Mapping[str, BinaryIO] | None = None) -> None:
        self._streams = streams or {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._queue: queue.SimpleQueue[tuple[str, bytes, Callable[[], None]] | None] = queue.SimpleQueue()
        self._broken: set[str] = set()
        self._thread = threading.Thread(target=self._print, name="printer", daemon=True)
        self._thread.start()

    def add(self, stream: str, data: bytes, printed: Callable[[], None]) -> None:
        """Have some lines written; ``printed`` is called when they are."""
        self._queue.put((stream, data, printed))

    def close(self, deadline_s: float) -> None:
        """Wait until all is written, or for the deadline."""
        self._queue.put(None)
        self._thread.join(deadline_s)

    def _print(self) -> None:
        while (entry := self._queue.get()) is not None:
            stream, data, printed = entry
            if data and stream not in self._broken:
                try:
                    self._streams[stream].write(data)
                    self._streams[stream].flush()
                except OSError:
                    self._broken.add(stream)
            printed()
