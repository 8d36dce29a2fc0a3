"""The controller's end of what leads to one node's agent: sends commands, and has reports taken as they come."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
from collections import deque
from collections.abc import Callable

from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.nodes.notices import About, Unreadable
from laggard.resilience.wire import ALIVE, KEEP_ALIVE, Command, Inbox, encode
from laggard.resilience.wire.checks import LogEnd
from laggard.resilience.wire.tasks import Output, Printed

_log = logging.getLogger("laggard.resilience.nodes")

KILL_DEADLINE_S = 2.0
_NOT_LOGGED = (Output, Printed, LogEnd)  # there are too many of them
_ALIVE = ALIVE.rstrip()


class AgentPipe:
    """A thread reads it: one for each child process, or one for all channels."""

    def __init__(
        self,
        host: str,
        process: AgentProcess,
        inbox: Inbox,
        notices: deque[About],
        changed: threading.Condition,
        clock: Callable[[], float],
    ) -> None:
        self.gone = False  # whether nothing more comes
        self.has_started = False  # whether the agent has sent anything yet
        self.last_heard_s = clock()  # when it last sent something, by `clock`
        self._host = host
        self._process = process
        self._inbox = inbox
        self._notices = notices
        self._changed = changed
        self._clock = clock
        self._sending = threading.Lock()
        self._is_closed = False
        self._unread = b""

    @property
    def pid(self) -> int:
        """Process id, on this machine, of the agent or of what connects us to it."""
        return self._process.pid

    def start_reading(self) -> None:
        """Have reports taken from now on, those that have come already included."""
        self._process.read(self._take, self._mark_gone)

    def send(self, command: Command) -> None:
        """Send a command, from any thread; nothing happens if the agent is gone."""
        if not isinstance(command, _NOT_LOGGED):
            _log.debug("to %s: %s %s", self._host, type(command).__name__, getattr(command, "name", ""))
        self._write(encode(command))

    def close(self) -> None:
        """Close it: the agent then ends everything that it started, and itself."""
        with self._sending:
            self._is_closed = True
            try:
                self._process.close()
            except BrokenPipeError:
                self.gone = True  # it has ended already

    def wait(self, deadline_s: float) -> None:
        """Wait for the agent to end; kill it at the deadline."""
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # held in the kernel: it runs nothing more
                self._process.wait(KILL_DEADLINE_S)

    def kill(self) -> None:
        """Kill the agent, without letting it end anything first."""
        self.close()
        self._process.kill()
        self.wait(0)

    def _write(self, line: bytes) -> None:
        try:
            with self._sending:
                if not self._is_closed:
                    self._process.write(line)
        except BrokenPipeError:
            self._mark_gone()

    def _mark_gone(self) -> None:
        with self._changed:
            self.gone = True
            self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        try:
            for line in lines:
                self._take_line(line)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody reads on: the node is lost, and the user told
            _log.error("messages of %s cannot be read", self._host, exc_info=error)
            self._notices.append(Unreadable(type(error).__name__, str(error)))
            self._process.kill()

    def _take_line(self, line: bytes) -> None:
        if line.startswith(_ALIVE):  # not parsed: of a thousand agents there are a thousand a second
            self.last_heard_s, self.has_started = self._clock(), True
            self._write(KEEP_ALIVE)  # we are alive too; a silent agent gets no reply
            return
        report = self._inbox.read(line)
        if not isinstance(report, _NOT_LOGGED):
            _log.debug("from %s: %s", self._host, report)
        if isinstance(report, Output):  # nothing that the controller waits for
            self.last_heard_s = self._clock()
            self._inbox.take(report)
            return
        with self._changed:
            self.last_heard_s, self.has_started = self._clock(), True
            self._inbox.take(report)
            self._changed.notify_all()
