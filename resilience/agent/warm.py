"""The warm process of a node, as its agent sees it: it has loaded what the program loads, and ranks are forked from it.

What it is, and what it answers, is in :mod:`.python_start.laggard_warm`. It belongs to no launch. Whenever it cannot
start a rank, the task starts a fresh process instead.

Of ranks that are started together, the first one runs before the others: it is whom they connect to, and whoever asks
too early asks again only after half a second.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from laggard.resilience.agent.context import Context
from laggard.resilience.agent.forked_process import ForkedProcess
from laggard.resilience.agent.hook import WARM, WARM_ROOM, hook_variables
from laggard.resilience.wire import decode, encode
from laggard.resilience.wire import warm as wire
from laggard.system.child_process import dies_with_parent

MESSAGE_BYTES = 1 << 16
# More than the variables of a rank need beyond those of all ranks.
ROOM_BYTES = 1 << 13
START_DEADLINE_S = 10.0
# Ranks that were forked for a launch that has not come by then are ended.
KEEP_S = 60.0
MAX_RANKS = 200
_ELF = b"\x7fELF"
LOG = "warm"
NOT_KEPT = "no warm process is kept"
NOT_READY = "the warm process is still loading"

Answer = Callable[[ForkedProcess | None, str], None]
"""Called with the process that runs, or None and why there is none."""


@dataclass(slots=True, eq=False)
class _Rank:
    """A process that was forked ahead, or is being forked."""

    channel: socket.socket
    pid: int = 0  # 0: not forked yet
    run: wire.Run | None = None  # what it is to run as
    answer: Answer | None = None  # None: it was called
    follows: _Rank | None = None  # runs before it
    pipes: tuple[IO[bytes], IO[bytes]] | None = None


class WarmProcess:
    """Keeps a node's warm process, and starts ranks from it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: wire.KeepWarm | None = None
        self._first: list[subprocess.Popen[bytes]] = []  # later ones replace them, which are adopted
        self._control: socket.socket | None = None
        self._next: socket.socket | None = None  # that of one that will replace it, once it has loaded more modules
        self._why_not = NOT_KEPT
        self._ranks: deque[_Rank] = deque()  # not in use yet
        self._starting: dict[_Rank, None] = {}  # in this order; the first one has its order, the others wait for it
        context.inbox.on(wire.KeepWarm, self.keep)
        context.inbox.on(wire.ForkAhead, lambda command: self._fork_ahead(command.n_tasks))

    @property
    def pids(self) -> set[int]:
        """Process ids of what is reaped here, or by the task that gets it."""
        return {first.pid for first in self._first} | {rank.pid for rank in self._starting if rank.pid}

    def keep(self, command: wire.KeepWarm) -> None:
        """Have a warm process for this, unless there is one; its output, and that of the modules, goes to its log."""
        before = self._wanted
        if command == before and self._control is not None:
            return
        if self._why_not or before is None or command != replace(before, modules=command.modules):
            self.drop()
        self._close_next()
        self._wanted = command
        try:
            self._start(command)
        except OSError as error:
            self.drop()
            self._why_not = f"no warm process can be started in {command.directory}: {error.strerror}"

    def _start(self, wanted: wire.KeepWarm) -> None:
        with Path(wanted.command[0]).open("rb") as file:
            is_program = file.read(len(_ELF)) == _ELF
        if not is_program:
            self._why_not = f"{wanted.command[0]} is a script: laggard cannot tell what it runs"
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = self._context.folder.environment(wanted.environment, writes_stacks=wanted.writes_stacks)
        environment |= {WARM: str(theirs.fileno()), WARM_ROOM: "." * ROOM_BYTES}
        with contextlib.ExitStack() as on_error, theirs, self._context.folder.log_of(LOG).open("ab") as log:
            on_error.callback(ours.close)
            first = subprocess.Popen(
                dies_with_parent(wanted.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **hook_variables(environment)},
                cwd=wanted.directory,
                pass_fds=[theirs.fileno()],
            )
            on_error.pop_all()
        self._first.append(first)
        ours.send(encode(wire.Load(os.getpid(), wanted.modules, wanted.varying)))
        if self._control is None:
            self._control, self._why_not = ours, NOT_READY
        else:
            self._next = ours
        self._context.selector.register(ours, selectors.EVENT_READ, partial(self._on_message, ours))

    def drop(self) -> None:
        """End the warm process and what was forked ahead, without waiting."""
        self._close_next()
        if self._control is not None:
            self._context.selector.unregister(self._control)
            self._control.close()
        self._control, self._wanted, self._why_not = None, None, NOT_KEPT
        while self._ranks:
            self._end(self._ranks[0])

    def _close_next(self) -> None:
        if self._next is not None:
            self._context.selector.unregister(self._next)
            self._next.close()
            self._next = None

    def reap(self) -> None:
        """Reap the processes that were started, once they have ended."""
        self._first = [first for first in self._first if first.poll() is None]

    def _on_message(self, control: socket.socket) -> None:
        if control not in (self._control, self._next):
            return  # it was closed after the selector reported it
        wanted, data = self._wanted, _received(control)
        if not data and control is self._next:
            self._close_next()  # those that are forked from the other one load more themselves
        elif not data:
            self.drop()
            self._wanted = wanted
            self._why_not = f"the warm process has ended: {self._context.folder.last_line_of(LOG) or 'it was killed'}"
        else:
            message = decode(data, wire.WarmReady, wire.LeftOut)
            if isinstance(message, wire.WarmReady):
                if control is self._next:
                    self._next = None
                    self.drop()
                self._control, self._wanted, self._why_not = control, wanted, ""
            self._context.send(message)

    def _fork_ahead(self, n_ranks: int) -> None:
        """Have processes forked that wait for what they are to run as."""
        channels = []
        while not self._why_not and len(self._ranks) < min(n_ranks, MAX_RANKS):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            os.set_blocking(ours.fileno(), False)
            rank = _Rank(ours)
            self._ranks.append(rank)
            self._context.selector.register(ours, selectors.EVENT_READ, partial(self._on_answer, rank))
            self._context.later.after(KEEP_S, partial(self._expire, rank))
            channels.append(theirs)
        if channels and self._control is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its end is about to be read
                socket.send_fds(self._control, [b"f"], [each.fileno() for each in channels])
        for each in channels:
            each.close()

    def start(self, run: wire.Run, answer: Answer) -> str:
        """Begin to start a process; return why not, or nothing if it was begun: then the answer comes later."""
        if self._why_not:
            return self._why_not
        self._fork_ahead(1)
        if not self._ranks:
            return NOT_KEPT
        rank = self._ranks.popleft()
        rank.run, rank.answer = run, answer
        rank.follows = next(iter(self._starting), None)
        self._starting[rank] = None
        self._context.later.after(START_DEADLINE_S, partial(self._give_up, rank))
        self._send_order(rank)
        return ""

    def _send_order(self, rank: _Rank) -> None:
        """Tell a rank what to run as, if it is there, and the one before it runs or never will."""
        if rank.run is None or not rank.pid or rank.follows in self._starting:
            return
        (out, out_end), (err, err_end) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        rank.pipes = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        try:
            socket.send_fds(rank.channel, [encode(rank.run)], [out_end, err_end])
        except OSError as error:  # it has ended, or the environment is too large
            self._refuse(rank, f"the forked process takes no order: {error.strerror}")
        finally:
            os.close(out_end)
            os.close(err_end)

    def _on_answer(self, rank: _Rank) -> None:
        if rank not in self._starting and rank not in self._ranks:
            return  # it was closed after the selector reported it
        data = _received(rank.channel)
        match decode(data, wire.Forked, wire.Runs, wire.Refused) if data else None:
            case wire.Forked(pid):
                rank.pid = pid
                self._send_order(rank)
            case wire.Runs() if rank.answer is not None and rank.pipes is not None:
                self._close(rank)
                self._leave(rank)
                rank.answer(ForkedProcess(rank.pid, *rank.pipes), "")
            case wire.Refused(why):
                self._refuse(rank, why)
            case _:
                self._refuse(rank, "the forked process has ended")

    def _refuse(self, rank: _Rank, why: str) -> None:
        self._end(rank)
        if rank.answer is not None:
            answer, rank.answer = rank.answer, None
            answer(None, why)

    def _give_up(self, rank: _Rank) -> None:
        if rank in self._starting:
            self._refuse(rank, f"the forked process does not start within {START_DEADLINE_S:g} s")

    def _expire(self, rank: _Rank) -> None:
        if rank in self._ranks:
            self._end(rank)

    def _end(self, rank: _Rank) -> None:
        """End a process that runs nothing yet; it is reaped like an orphan."""
        if rank in self._ranks:
            self._ranks.remove(rank)
        if rank.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(rank.pid, signal.SIGKILL)
                os.waitpid(rank.pid, os.WNOHANG)  # if it had ended before
        for pipe in rank.pipes or ():
            pipe.close()
        self._close(rank)
        self._leave(rank)

    def _leave(self, rank: _Rank) -> None:
        """Let those run that have waited for this one."""
        self._starting.pop(rank, None)
        for other in [other for other in self._starting if other.follows is rank]:
            other.follows = None
            self._send_order(other)

    def _close(self, rank: _Rank) -> None:
        self._context.selector.unregister(rank.channel)
        rank.channel.close()


def _received(channel: socket.socket) -> bytes:
    try:
        return channel.recv(MESSAGE_BYTES)
    except ConnectionResetError:  # it has ended, with something unread
        return b""
