"""Discovery: wait for the handshakes of all remote agents, or find out why they do not come.

A handshake is the first message of an agent that was started over ``srun`` or ``ssh``: what its node has.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from dataclasses import dataclass
from typing import IO, cast

from laggard.logs import last_line_of
from laggard.resilience.agent.channel import Channel
from laggard.resilience.errors import MessageError
from laggard.resilience.wire import decode
from laggard.resilience.wire.handshake import CannotDial, Handshake
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming

# A node that has not answered by then is named. By then ssh has given up those that accept no connection.
LATE_S = 9.0
# An unreachable node has failed by then. Those that are only slow may take as long as until a first heartbeat, unless
# too many have failed.
REFUSAL_S = 10.0

Late = Callable[[Collection[str]], None]


@dataclass(frozen=True, slots=True)
class DialledAgent:
    """An agent on another machine: reached, and ended, over its channel."""

    pid: int  # of the process of this machine that has started it
    channel: Channel  # what the agent and we say to each other

    def read(self, take: Callable[[bytes], None], tell_end: Callable[[], None]) -> None:
        """Have something called, in the loop, with all that it sends, and at the end."""
        self.channel.read(take, tell_end)

    def write(self, data: bytes) -> None:
        """Send it this."""
        self.channel.write(data)

    def close(self) -> None:
        """Tell it to end."""
        self.channel.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has said that it ends, or is gone, like :meth:`subprocess.Popen.wait`."""
        if not self.channel.wait_for_end(timeout):
            raise subprocess.TimeoutExpired("an agent", timeout or 0.0)
        return 0

    def kill(self) -> None:
        """Do without it: it ends when nothing has come from us for a while, unless it is ended there."""
        self.channel.abandon()

    def note_answer(self) -> None:
        """Take note of its handshake."""

    def complaint(self) -> str | CannotDial:
        """Return what is known of why there is no handshake."""
        return "nothing answers yet"


@dataclass(frozen=True, slots=True)
class OwnAgent(DialledAgent):
    """An agent with a process of ``srun`` or ``ssh`` of its own, with which it ends."""

    process: subprocess.Popen[bytes]
    stderr: IO[bytes]  # a file with what that process has written to standard error

    def close(self) -> None:
        """Tell it to end, by both ways that lead to it."""
        self.channel.close()
        cast("IO[bytes]", self.process.stdin).close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends, like :meth:`subprocess.Popen.wait`."""
        exit_code = self.process.wait(timeout)
        cast("IO[bytes]", self.process.stdout).close()
        self.stderr.close()
        return exit_code

    def kill(self) -> None:
        """End the process that started it, and drop its connection: it ends if it notices either."""
        self.process.kill()
        self.channel.abandon()

    def complaint(self) -> str | CannotDial:
        """Return the last line of standard error, or else how far the agent has come."""
        stdout = cast("io.BufferedReader", self.process.stdout)
        os.set_blocking(stdout.fileno(), False)
        came = "a shell answers, but laggard does not start there" if stdout.peek(1) else "nothing answers yet"
        self.stderr.seek(0)
        line = last_line_of(self.stderr.read())
        return cannot_dial(line) or line or came


def cannot_dial(line: str) -> CannotDial | None:
    """Return what an agent that cannot dial has written; None if a line is none of its own."""
    try:
        return decode(line.encode(), CannotDial)
    except MessageError:
        return None


class Pending:
    """An agent that was started and has not said yet what its node has."""

    def __init__(self, agent: DialledAgent, start_alone: Callable[[], DialledAgent] | None = None) -> None:
        self.answer: Future[Handshake | None] = Future()  # None: it has ended before, or is given up
        self._start_alone = start_alone  # starts it by itself if what should have started it does not
        self._follow(agent)

    @property
    def is_cut_off(self) -> bool:
        """Whether the agent runs there and cannot reach us."""
        return isinstance(self.agent.complaint(), CannotDial)

    def give_up(self) -> None:
        """Have nobody wait for the answer any longer."""
        self._settle(None)

    def _follow(self, agent: DialledAgent) -> None:
        self.agent = agent
        self._unread = b""
        agent.channel.read(self._take, self._end)

    def _take(self, data: bytes) -> None:
        line, end, rest = (self._unread + data).partition(b"\n")
        self._unread = line
        if end:
            self.agent.channel.pause(rest)
            self.agent.note_answer()
            self._settle(decode(line, Handshake))

    def _end(self) -> None:
        start_alone, self._start_alone = self._start_alone, None
        if start_alone is not None and not self.answer.done():
            self.agent.kill()
            self._follow(start_alone())
            if self.answer.done():  # it was given up meanwhile
                self.agent.kill()
        else:
            self._settle(None)

    def _settle(self, answer: Handshake | None) -> None:
        with contextlib.suppress(InvalidStateError):  # it was settled before
            self.answer.set_result(answer)


def await_handshakes(
    pending: Mapping[str, Pending],
    may_miss: int = 0,
    on_late: Late = lambda _: None,
    late_s: float = LATE_S,
    refusal_s: float = REFUSAL_S,
) -> dict[str, Handshake]:
    """Return the handshakes of the agents that answer in time; the others are given up."""
    answers = {host: each.answer for host, each in pending.items()}
    _, late = wait(answers.values(), late_s)
    if late:
        on_late([host for host, answer in answers.items() if answer in late])
    wait(answers.values(), refusal_s - late_s)
    for each in pending.values():
        if not each.answer.done() and each.is_cut_off:  # it would have come by now
            each.give_up()
    done, late = wait(answers.values(), 0)
    if late and sum(answer.result() is None for answer in done) <= may_miss:
        wait(late, HeartbeatTiming(len(pending)).first_heartbeat_s - refusal_s)
    for each in pending.values():
        each.give_up()
    return {host: found for host, answer in answers.items() if (found := answer.result()) is not None}
