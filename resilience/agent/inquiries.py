"""Questions about the node that a process of their own answers, since a driver or a file system may hang.

A relaunch waits for the answer, and to start Python and load modules takes longer than to answer. So a process that has
done so, and waits for its question, is kept ready once the first one has answered.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, cast

from laggard.resilience.agent.context import Context

# The next process is started when the launch that may follow an answer has begun.
READY_AFTER_S = 5.0
# A process that has answered or was killed ends at once, unless the kernel holds it.
HELD_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to a process that writes one line or several, of which the last complete one is the answer."""

    answer: Callable[[bytes], None]  # called with it; empty: there was none in time
    command: Sequence[str]
    deadline_s: float
    question: bytes | None = None  # a line that the process waits for, so that another one can be kept ready


class Inquiries:
    """Asks one question after the other, so that each answer is to one question."""

    def __init__(self, context: Context, ready_after_s: float | None = None) -> None:
        self._context = context
        self._ready_after_s = ready_after_s  # None: none is kept ready
        self._asked: subprocess.Popen[bytes] | None = None
        self._held: subprocess.Popen[bytes] | None = None  # by the kernel, when it was seen last: it should have ended
        self._ready: subprocess.Popen[bytes] | None = None  # waits for its question
        self._waiting: deque[Inquiry] = deque()

    @property
    def pids(self) -> set[int]:
        """Process ids of the one that answers and the one that is kept ready."""
        return {process.pid for process in (self._asked, self._ready, self._held) if process is not None}

    def ask(self, inquiry: Inquiry) -> None:
        """Ask a question, once those before it are answered."""
        self._waiting.append(inquiry)
        if self._asked is None:
            self._ask_next()

    def _ask_next(self) -> None:
        inquiry = self._waiting.popleft()
        if self._held is not None and self._held.poll() is None:
            # What holds one process would hold the next as well: they must not pile up.
            self._finish(inquiry, [])
            return
        ready = self._take_ready() if inquiry.question is not None else None
        self._asked = process = ready or self._start(inquiry)
        if inquiry.question is not None:
            with contextlib.suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as pipe:  # it has ended
                pipe.write(inquiry.question)
            if self._ready_after_s is not None:
                self._context.later.after(self._ready_after_s, partial(self._keep_ready, inquiry))
        answer = cast("IO[bytes]", process.stdout)
        found: list[bytes] = []
        self._context.selector.register(answer, selectors.EVENT_READ, partial(self._take, inquiry, answer, found))
        self._context.later.after(inquiry.deadline_s, partial(self._end, inquiry, process, answer, found))

    def _keep_ready(self, inquiry: Inquiry) -> None:
        if self._ready is None:
            self._ready = self._start(inquiry)

    def _take_ready(self) -> subprocess.Popen[bytes] | None:
        """Return the process that is kept ready, unless it has ended."""
        ready, self._ready = self._ready, None
        if ready is None or ready.poll() is None:
            return ready
        for pipe in (ready.stdin, ready.stdout):
            cast("IO[bytes]", pipe).close()
        return None

    def _take(self, inquiry: Inquiry, reader: IO[bytes], found: list[bytes]) -> bool:
        """Take a piece of the answer; after the last one pass on the last line, or nothing if there is none."""
        if piece := reader.read(1 << 16):
            found.append(piece)
            return True
        self._close(inquiry, reader, found)
        return True

    def _end(self, inquiry: Inquiry, process: subprocess.Popen[bytes], reader: IO[bytes], found: list[bytes]) -> None:
        """End a process that has taken too long."""
        process.kill()
        if not reader.closed:
            self._context.later.after(HELD_AFTER_S, partial(self._leave, inquiry, reader, found))

    def _leave(self, inquiry: Inquiry, reader: IO[bytes], found: list[bytes]) -> None:
        """Go on without a process that was killed and does not end."""
        if not reader.closed:
            self._close(inquiry, reader, found)

    def _close(self, inquiry: Inquiry, reader: IO[bytes], found: list[bytes]) -> None:
        self._context.selector.unregister(reader)
        reader.close()
        if self._asked is not None and self._asked.poll() is None:
            self._context.later.after(HELD_AFTER_S, partial(self._note_held, self._asked))
        self._finish(inquiry, found)

    def _note_held(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self._held = process

    def _finish(self, inquiry: Inquiry, found: list[bytes]) -> None:
        self._asked = None
        *lines, _ = b"".join(found).split(b"\n")
        inquiry.answer(lines[-1] if lines else b"")
        if self._waiting:
            self._ask_next()

    def _start(self, inquiry: Inquiry) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            inquiry.command,
            stdin=subprocess.DEVNULL if inquiry.question is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=self._context.folder.environment({}),
        )
