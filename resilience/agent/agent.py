"""The agent of one node: starts its processes, reports that it is alive, and leaves nothing behind.

The allocation starts one on each node (``python -m laggard.resilience.agent.agent``). It takes commands and answers,
as lines (:mod:`laggard.resilience.wire`): on its standard input and output, or, on another machine than the
controller's, over a connection that it makes (:mod:`.dialling`). When that closes, the controller is gone, and
everything on the node is ended. The same happens when nothing has come for some time, since a network that is cut
closes nothing.

It sends its heartbeat twice a second, in a large job more rarely (:mod:`.heartbeat`). What it does is divided by
subject: :mod:`.tasks`, :mod:`.ray`, :mod:`.checks` and :mod:`.warm`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Protocol

import psutil

from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH
from laggard.logs import configure_logging
from laggard.resilience.agent import DIALS, JOINS, own_name
from laggard.resilience.agent.checks import Checks, CheckSettings
from laggard.resilience.agent.context import Context
from laggard.resilience.agent.heartbeat import Heartbeat
from laggard.resilience.agent.processes import (
    FORCED_STOP_S,
    adopt_orphans,
    end_descendants,
    end_marked,
    environment_of,
    reap_orphans,
)
from laggard.resilience.agent.ray import RayProcess
from laggard.resilience.agent.tasks import Tasks
from laggard.resilience.agent.warm import WarmProcess
from laggard.resilience.decision.reasons import StuckProcesses
from laggard.resilience.errors import ProcessesStillRunningError
from laggard.resilience.wire import ALIVE, KEEP_ALIVE, Report, encode
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from laggard.resilience.wire.node import Crashed, JobEnded, Ping, Pong, SetUp, TakenIn, ToldToEnd
from laggard.resilience.wire.tasks import EndLeftovers, LeftoversEnded

_log = logging.getLogger("laggard.resilience.agent")

LEASE_S = 300.0
# Before its first command, an agent waits for so much longer: the controller begins once all nodes have answered, or
# have been given up.
OTHERS_S = 90.0
EXIT_TERMINATED = 128 + signal.SIGTERM
# After SIGTERM: longer than the controller, which is told the same, gives the program to save.
SAVE_S = 8.0


class Answers(Protocol):
    """What the agent's reports are written to."""

    def write(self, data: bytes, /) -> int:
        """Write this."""

    def flush(self) -> None:
        """Send what was written."""


class Agent:
    """One node's agent; `run` returns when the controller's pipe closes or has been silent for ``lease_s`` seconds.

    Before the first command it may be silent for ``others_s`` seconds more. The job has ``n_nodes`` nodes, as far as is
    known by then.
    """

    def __init__(
        self,
        commands: IO[bytes],
        answers: Answers,
        lease_s: float = LEASE_S,
        others_s: float = 0.0,
        n_nodes: int = HeartbeatTiming().n_nodes,
        checks: CheckSettings | None = None,
        tell: Callable[[JobEnded | TakenIn], object] = lambda _: None,
        save_s: float = SAVE_S,
    ) -> None:
        self._commands = commands
        self._tell = tell  # called with what concerns the process that has started the agent
        self._save_s = save_s  # how long tasks may save after SIGTERM
        self._unread = b""
        self._sending = threading.Lock()
        self._answers = answers
        context = self._context = Context(self._send)
        context.inbox.on(SetUp, self._set_up)
        context.inbox.on(Ping, lambda _: self._due.append(lambda: Pong(time.time())))
        context.inbox.on(EndLeftovers, self._end_leftovers)
        context.inbox.on(JobEnded, tell)
        self._heartbeat = Heartbeat(lease_s, others_s, n_nodes)
        self._warm = WarmProcess(context)
        self._tasks = Tasks(context, self._warm)
        self._checks = Checks(context, checks or CheckSettings(), self._tasks.newest_error_output)
        self._ray = RayProcess(context, self._pids_beside_ray)
        self._due: list[Callable[[], Report]] = []  # sent after everything that was noticed before
        self._child_ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Carry out commands until the controller's pipe closes, then end every descendant."""
        adopt_orphans()
        children, child_ended = self._child_ended
        os.set_blocking(self._commands.fileno(), False)
        self._context.selector.register(self._commands, selectors.EVENT_READ, self._read_commands)
        self._context.selector.register(children, selectors.EVENT_READ, self._reap_children)
        signal.set_wakeup_fd(child_ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._heartbeat.start(partial(self._write, ALIVE))
        is_alone = False  # whether the controller is gone, whose program on this machine may have left something
        try:
            self._serve()
            is_alone = True
        except BrokenPipeError:
            is_alone = True  # the controller went away while we were sending
        except Exception as error:
            _log.exception("the agent crashed")
            self._send(Crashed(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._heartbeat.stop()
            with contextlib.ExitStack() as last:  # even if a process cannot be ended
                last.callback(self._context.folder.remove)
                last.callback(reap_orphans, own=())  # not every machine's init does it for us
                if is_alone:
                    last.callback(self._end_strays)
                end_descendants(deadline_s=FORCED_STOP_S)

    def _serve(self) -> None:
        selector, later = self._context.selector, self._context.later
        while not self._heartbeat.lease_is_over:
            self._tasks.look()
            self._ray.watch_parts()
            self._heartbeat.look()
            while (due_s := self._heartbeat.due_s) > 0:
                for key, _ in selector.select(later.wait_s(due_s)):
                    if key.data() is False:
                        return
                later.run_due()
                due, self._due = self._due, []
                for report in due:
                    self._send(report())

    def _on_sigterm(self, *_: object) -> None:
        """End, but with ranks of the program not at once: Slurm ends everything at one moment, and they may save."""
        if not self._tasks.has_any_of_a_launch:
            sys.exit(EXIT_TERMINATED)
        self._due.append(ToldToEnd)  # the signal has also ended the selector's wait
        self._context.later.after(self._save_s, partial(sys.exit, EXIT_TERMINATED))

    def _send(self, report: Report) -> None:
        self._write(encode(report))

    def _write(self, line: bytes) -> None:
        with self._sending:
            self._answers.write(line)
            self._answers.flush()

    def _read_commands(self) -> bool:
        """Carry out what has come; return False if nothing more comes."""
        self._heartbeat.hear()
        data = os.read(self._commands.fileno(), 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line != KEEP_ALIVE.rstrip():
                command = self._context.inbox.read(line)
                _log.debug("command: %s %s", type(command).__name__, getattr(command, "name", ""))
                self._context.inbox.take(command)
        return bool(data)

    def _set_up(self, command: SetUp) -> None:
        self._context.folder.set_up(command)
        self._heartbeat.set_up(command)
        self._tell(TakenIn())

    def _end_strays(self) -> None:
        """End what a program of the controller's own has left here: if the controller was killed, nobody else does."""
        if mark := self._context.folder.variables.get(ENDPOINT_FILE):
            end_marked(ENDPOINT_FILE, mark, FORCED_STOP_S)

    def _pids_beside_ray(self) -> set[int]:
        return self._tasks.pids | self._checks.pids | self._warm.pids

    def _reap_children(self) -> None:
        """Reap adopted processes; called after each SIGCHLD."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._child_ended[0], 1 << 16)
        self._warm.reap()
        reap_orphans(own=self._pids_beside_ray() | self._ray.pids)

    def _end_leftovers(self, command: EndLeftovers) -> None:
        def launch_of(process: psutil.Process) -> int | None:
            launch = environment_of(process).get(LAUNCH, "")
            return int(launch) if launch.isdigit() else None

        def is_leftover(process: psutil.Process) -> bool:
            if (launch := launch_of(process)) is None or launch >= command.below:
                return False
            # What a rank has started that goes on in a later launch belongs to it.
            with contextlib.suppress(psutil.NoSuchProcess):
                above = itertools.takewhile(lambda each: each.pid != os.getpid(), process.parents())
                return all((launch_of(each) or 0) < command.below for each in above)
            return False

        try:
            ended = LeftoversEnded(end_descendants(is_leftover, deadline_s=FORCED_STOP_S))
        except ProcessesStillRunningError as error:
            ended = LeftoversEnded(0, StuckProcesses(error.deadline_s, tuple(error.pids), tuple(error.states)))
        self._send(ended)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the agent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller's to handle: it closes the pipe
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    for warning in (signal.SIGUSR1, signal.SIGUSR2):  # Slurm's, some time before the end, to every step of the job
        signal.signal(warning, signal.SIG_IGN)  # as our helpers do, which inherit it; the program's start undoes it
    configure_logging()
    try:
        with contextlib.suppress(BrokenPipeError):
            if arguments[:1] == [JOINS]:
                first, save_s, others_s = arguments[1:]
                _run_dialling([first], float(others_s), _tell_parent, float(save_s))
            elif DIALS in arguments:
                _run_dialling(arguments[1:])
            else:
                _run_on_pipes()
    except ProcessesStillRunningError as error:
        print(f"laggard: {error}", file=sys.stderr)
        return 1
    return 0


def _tell_parent(message: JobEnded | TakenIn) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended, so the agent is about to
        os.write(sys.stdout.fileno(), encode(message))


def _run_dialling(
    first_words: Sequence[str],
    others_s: float = OTHERS_S,
    tell: Callable[[JobEnded | TakenIn], object] | None = None,
    save_s: float = SAVE_S,
) -> None:
    from laggard.resilience.agent.dialling import Dialled, read_join_token  # most agents of one machine need no TLS

    token = read_join_token(sys.stdin.fileno())
    if not token.agent:
        token = token.of_node(own_name())
    controller = Dialled(token, sys.stdin.fileno(), is_tied=tell is not None)
    for line in first_words:
        controller.answers.write(line.encode())
    try:
        with os.fdopen(controller.commands, "rb") as commands:
            n_nodes = token.n_nodes
            lease_s, tell = HeartbeatTiming(n_nodes).lease_s, tell or (lambda _: None)
            Agent(commands, controller.answers, lease_s, others_s, n_nodes, tell=tell, save_s=save_s).run()
    finally:
        controller.finish()


def _run_on_pipes() -> None:
    # Not sys.stdout: under PYTHONUNBUFFERED it loses the rest of a long message if a signal interrupts the write.
    with open(sys.stdout.fileno(), "wb", closefd=False) as answers:
        Agent(sys.stdin.buffer, answers).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
