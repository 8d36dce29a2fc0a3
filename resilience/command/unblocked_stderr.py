"""Standard error that never makes its writer wait: a terminal that is stopped (Ctrl-S) must not stop a job.

What is written is queued, and a thread writes it. At the end it is given a moment to write the rest.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

from laggard.system.printer import Printer, unbuffered

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DRAIN_DEADLINE_S = 5.0


class _Queue(io.RawIOBase):
    """Passes on what is written to it to a text stream, in a thread; what that refuses, as nobody reads it, is lost."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target
        self.printer = Printer({"stderr": unbuffered(target)})

    def write(self, data: ReadableBuffer, /) -> int:
        self.printer.add("stderr", bytes(data))
        return len(bytes(data))

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()


class UnblockedText(io.TextIOWrapper):
    """A text stream that passes on what is written to another one, in a thread."""

    def __init__(self, target: TextIO) -> None:
        self._written = _Queue(target)
        super().__init__(cast("BinaryIO", self._written), target.encoding, target.errors, write_through=True)

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything is written; return whether it was in time."""
        return self._written.printer.drain(deadline_s)


@contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Replace ``sys.stderr`` for a while."""
    original = sys.stderr
    sys.stderr = unblocked = UnblockedText(original)
    try:
        yield
    finally:
        sys.stderr = original
        unblocked.drain(DRAIN_DEADLINE_S)
