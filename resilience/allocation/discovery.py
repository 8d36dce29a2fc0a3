"""Discovery: wait for the handshakes of all remote agents, or find out why they do not come.

A handshake is the first message of an agent, sent by :mod:`laggard.resilience.agent.handshake`: what its node has.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import IO, Protocol, cast

from laggard.resilience.agent.channel import Channel
from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.wire import decode
from laggard.resilience.wire.handshake import HANDSHAKE, Handshake

# A node that has not answered by then is named. By then ssh has given up those that accept no connection.
LATE_S = 9.0
# An unreachable node has failed by then. Those that are only slow get until ANSWER_S, unless too many have failed.
REFUSAL_S = 10.0
ANSWER_S = 60.0
# The start-up files of a login shell may print something first, lines without end among it.
MAX_NOISE_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16

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


@dataclass(frozen=True, slots=True)
class OwnAgent(DialledAgent):
    """An agent with a process of ``srun`` or ``ssh`` of its own, with which it ends."""

    process: subprocess.Popen[bytes]

    def close(self) -> None:
        """Tell it to end, by both ways that lead to it."""
        self.channel.close()
        cast("IO[bytes]", self.process.stdin).close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends, like :meth:`subprocess.Popen.wait`."""
        exit_code = self.process.wait(timeout)
        cast("IO[bytes]", self.process.stdout).close()
        return exit_code

    def kill(self) -> None:
        """End the process that started it, and drop its connection: it ends if it notices either."""
        self.process.kill()
        self.channel.abandon()


class Pending(Protocol):
    """An agent that was started and has not sent its handshake yet."""

    @property
    def channel(self) -> Channel:
        """On which it will be reached."""

    def when_due(self, call: Callable[[], object]) -> None:
        """Call this when somebody has to wait for the handshake, now or later, in any thread."""

    def handshake(self) -> Handshake | None:
        """Wait for the handshake and return it; None if the agent ends without one, or is given up."""

    def give_up(self) -> None:
        """Have `handshake` wait no longer."""

    def complaint(self) -> str:
        """Return what is known of why there is no handshake."""

    def hand_over(self) -> AgentProcess:
        """Return the agent, now that it runs."""

    def cancel(self) -> None:
        """End the agent."""


@dataclass(slots=True)
class PendingAgent:
    """An agent that was started and has not sent its handshake yet."""

    process: subprocess.Popen[bytes]  # the process of `srun` or `ssh` on this machine
    stderr: IO[bytes]  # a file with what that process has written to standard error
    channel: Channel  # on which it will be reached
    has_printed: bool = False  # whether anything has come from the node
    max_noise_bytes: int = MAX_NOISE_BYTES  # of what comes before the handshake

    def when_due(self, call: Callable[[], object]) -> None:
        """Call this at once."""
        call()

    def handshake(self) -> Handshake | None:
        """Wait for the handshake and return it; None if the agent ends without one."""
        stdout = cast("IO[bytes]", self.process.stdout)
        n_bytes = 0
        while n_bytes < self.max_noise_bytes and (line := stdout.readline(MAX_LINE_BYTES)):
            self.has_printed = True
            n_bytes += len(line)
            if line.startswith(HANDSHAKE):
                return decode(line, Handshake)
        return None

    def give_up(self) -> None:
        """End the process, so that `handshake` finds the end of the pipe."""
        self.process.kill()

    def complaint(self) -> str:
        """Return the last line of standard error, or else how far the agent has come."""
        came = "a shell answers, but laggard does not start there" if self.has_printed else "nothing answers yet"
        return last_line_of(self.stderr) or came

    def hand_over(self) -> OwnAgent:
        """Return the agent, now that it runs."""
        self.stderr.close()
        return OwnAgent(self.process.pid, self.channel, self.process)

    def cancel(self) -> None:
        """End the agent, which happens when its pipe and its connection close."""
        self.stderr.close()
        self.channel.abandon()
        self.process.kill()
        self.process.communicate()


def last_line_of(stderr: IO[bytes]) -> str:
    """Return the last line that a process has written to a file; empty if there is none."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def await_handshakes(
    pending: Mapping[str, Pending],
    may_miss: int = 0,
    on_late: Late = lambda _: None,
    late_s: float = LATE_S,
    refusal_s: float = REFUSAL_S,
) -> dict[str, Handshake]:
    """Return the handshakes of the agents that answer in time; the others are given up."""
    if not pending:
        return {}
    with ThreadPoolExecutor(len(pending), "discover") as readers:
        futures = {host: _begin(agent, readers) for host, agent in pending.items()}
        try:
            _, late = wait(futures.values(), late_s)
            if late:
                on_late([host for host, future in futures.items() if future in late])
            done, late = wait(futures.values(), refusal_s - late_s)
            if late and sum(future.result() is None for future in done) <= may_miss:
                wait(late, ANSWER_S - refusal_s)
        finally:
            for host, future in futures.items():
                if not future.done():
                    pending[host].give_up()
            wait(futures.values())
    handshakes = {host: future.result() for host, future in futures.items()}
    return {host: handshake for host, handshake in handshakes.items() if handshake is not None}


def _begin(agent: Pending, readers: ThreadPoolExecutor) -> Future[Handshake | None]:
    """Have a thread wait for an agent's handshake when it is due, rather than one for each of thousands at once."""
    found: Future[Handshake | None] = Future()

    def read() -> None:
        try:
            found.set_result(agent.handshake())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            found.set_exception(error)

    agent.when_due(partial(readers.submit, read))
    return found
