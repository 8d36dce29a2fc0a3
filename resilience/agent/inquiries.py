"""Questions about the node that a process of their own answers, since a driver or a file system may hang."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from laggard.resilience.agent.later import Later

__all__ = ["Inquiries", "Inquiry"]


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question.

    Attributes
    ----------
    event
        The message that answers it; its field ``found`` is what the process has written, or null.
    command
        Command line of a process that writes a line of JSON, or several, of which the last complete one counts.
    environment
        Its variables in addition to the agent's own.
    deadline_s
        After how many seconds it is killed.
    """

    event: str
    command: Sequence[str]
    environment: Mapping[str, str]
    deadline_s: float


class Inquiries:
    """Asks one question after the other, so that each answer is to one question.

    Parameters
    ----------
    selector
        The agent's selector; it calls whatever is registered as data when a file is ready.
    send
        Sends a message to the controller.
    later
        Where to put what is done later.
    """

    def __init__(self, selector: selectors.BaseSelector, send: Callable[..., None], later: Later) -> None:
        self._selector = selector
        self._send = send
        self._later = later
        self._asked: subprocess.Popen[bytes] | None = None
        self._waiting: deque[Inquiry] = deque()

    @property
    def pids(self) -> set[int]:
        """Process id of the one that runs."""
        return set() if self._asked is None else {self._asked.pid}

    def ask(self, inquiry: Inquiry) -> None:
        """Ask a question, once those before it are answered."""
        self._waiting.append(inquiry)
        if self._asked is None:
            self._ask_next()

    def _ask_next(self) -> None:
        inquiry = self._waiting.popleft()
        reader, writer = os.pipe()
        self._asked = subprocess.Popen(
            inquiry.command,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **inquiry.environment},
        )
        os.close(writer)
        found: list[bytes] = []
        on_data = partial(self._take, inquiry.event, reader, found)
        self._selector.register(reader, selectors.EVENT_READ, on_data)
        self._later.after(inquiry.deadline_s, self._asked.kill)

    def _take(self, event: str, reader: int, found: list[bytes]) -> bool:
        """Take a piece of the answer; after the last one pass on the last line, or nothing if there is none."""
        if piece := os.read(reader, 1 << 16):
            found.append(piece)
            return True
        self._selector.unregister(reader)
        os.close(reader)
        if self._asked is not None:
            self._asked.poll()  # it may still be ending, in a driver that hangs: then it is reaped with the orphans
            self._asked = None
        *lines, _ = b"".join(found).split(b"\n")
        self._send(event, found=json.loads(lines[-1]) if lines else None)
        if self._waiting:
            self._ask_next()
        return True
