"""Standard error that never makes its writer wait: a terminal that is stopped (Ctrl-S) must not stop a job.

What is written is queued, and a thread writes it. At the end it is given a moment to write the rest.
"""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TextIO

DRAIN_DEADLINE_S = 5.0


class UnblockedText(io.TextIOBase):
    """A text stream that passes on what is written to another one, in a thread.

    What the other stream refuses, because nobody reads it any more, is dropped.
    """

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target  # the other stream
        self._queue: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pass_on, name="stderr-writer", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The other stream's encoding."""
        return self._target.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the other stream does with characters that it cannot encode."""
        return self._target.errors

    @property
    def buffer(self) -> BinaryIO:
        """The other stream's bytes, for whoever writes them in a thread of its own."""
        return self._target.buffer

    def write(self, text: str, /) -> int:
        """Queue some text."""
        if not isinstance(text, str):
            raise TypeError(f"a text is needed, not {type(text).__name__}")
        self._queue.put(text)
        return len(text)

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether the other stream is a terminal."""
        return self._target.isatty()

    def fileno(self) -> int:
        """Return the other stream's descriptor."""
        return self._target.fileno()

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything is written; return whether it was in time."""
        until_s = time.monotonic() + deadline_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                if not self._queue.all_tasks_done.wait(max(0.0, until_s - time.monotonic())):
                    return False
        return True

    def _pass_on(self) -> None:
        while True:
            text = self._queue.get()
            try:
                self._write_now(text)
            except (OSError, ValueError):  # ValueError: it is closed
                pass
            finally:
                self._queue.task_done()

    def _write_now(self, text: str) -> None:
        try:
            descriptor = self._target.fileno()
        except OSError:  # it is no file
            self._target.write(text)
            self._target.flush()
            return
        # Past its buffer, whose lock a thread that waits for a terminal would keep until the process ends.
        data = memoryview(text.encode(self.encoding, self.errors or "strict"))
        while data:
            data = data[os.write(descriptor, data) :]


@contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Replace ``sys.stderr`` for a while."""
    original = sys.stderr
    unblocked = UnblockedText(original)
    sys.stderr = unblocked
    try:
        yield
    finally:
        sys.stderr = original
        unblocked.drain(DRAIN_DEADLINE_S)
