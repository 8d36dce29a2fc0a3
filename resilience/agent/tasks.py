"""The tasks of a node: processes of one launch, started by the node's agent.

The copies of a ``--per-node`` program are tasks, and so are the probes of ``--detect``. A task has the number of its
launch in its environment, by which its leftovers are found. Its output is passed on as it comes, but no more than
`WINDOW_BYTES` that the controller has not printed yet: a task whose output nobody reads blocks, as on any pipe.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, cast

from laggard.logs import last_line
from laggard.resilience.agent.forked_process import ForkedProcess
from laggard.resilience.agent.hook import IMPORTS, hook_variables
from laggard.resilience.agent.later import Later
from laggard.resilience.agent.warm import Order, WarmProcess
from laggard.resilience.decision.backoff import Backoff
from laggard.system.child_process import dies_with_parent

__all__ = ["TaskStart", "Tasks"]

EXIT_CANNOT_START = 127
CHUNK_BYTES = 1 << 16
# A full pipe holds 64 KiB. It may take two reads, and a third to see that it is empty.
PIPE_CHUNKS = 3
# Output on its way to the controller's terminal, of all tasks of the node together.
WINDOW_BYTES = 1 << 18
# Of each task's standard error, to say later why it ended.
KEPT_BYTES = 1 << 16
# Of tasks that have not ended; all of them are asked at once.
NEWEST_BYTES = 1 << 13


@dataclass(frozen=True, slots=True)
class TaskStart:
    """What is needed to start a task.

    Attributes
    ----------
    name
        Its name, a different one for each launch.
    command
        Its command line.
    environment
        Its variables in addition to the agent's own.
    directory
        Its working directory.
    log
        Where its output goes; None: to the controller.
    restarts
        Whether it is started again when it ends by itself.
    may_be_warm
        Whether it is forked from the warm process if that is possible.
    imports
        Where it records what it imports; None: nowhere.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    log: Path | None
    restarts: bool = False
    may_be_warm: bool = False
    imports: Path | None = None

    @property
    def whole_environment(self) -> dict[str, str]:
        """All of its variables, the agent's own among them."""
        return {**os.environ, **self.environment}


@dataclass(frozen=True, slots=True)
class _Task:
    start: TaskStart
    process: subprocess.Popen[bytes] | ForkedProcess
    exit_fd: int  # readable once the process has ended
    began_s: float
    kept: bytearray = field(default_factory=bytearray)  # the end of its standard error

    def keep(self, data: bytes) -> None:
        self.kept.extend(data)
        del self.kept[:-KEPT_BYTES]

    def streams(self) -> dict[str, IO[bytes]]:
        pipes = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        return {name: pipe for name, pipe in pipes.items() if pipe is not None}


class Tasks:
    """Starts tasks, passes on their output, and reports when they end.

    Parameters
    ----------
    selector
        The agent's selector; it calls whatever is registered as data when a file is ready.
    send
        Sends a message to the controller.
    later
        Where to put what is done later.
    warm
        The node's warm process.
    """

    def __init__(
        self, selector: selectors.BaseSelector, send: Callable[..., None], later: Later, warm: WarmProcess
    ) -> None:
        self._selector = selector
        self._send = send
        self._later = later
        self._warm = warm
        self._signals: dict[str, list[int]] = {}  # that came while a task was being forked
        self._backoffs: dict[str, Backoff] = {}
        self._waiting: dict[str, dict[str, object]] = {}  # tasks to start again, with how they ended
        self._running: dict[str, _Task] = {}
        self._open: dict[IO[bytes], Callable[[], None]] = {}
        self._unprinted = 0
        self._paused = False

    @property
    def pids(self) -> set[int]:
        """Process ids of the running tasks."""
        return {task.process.pid for task in self._running.values()}

    def newest_error_output(self) -> dict[str, str]:
        """Return the newest lines of the standard error of each running task whose output is passed on."""
        return {
            name: bytes(task.kept[-NEWEST_BYTES:]).decode(errors="replace")
            for name, task in self._running.items()
            if task.kept
        }

    def start(self, start: TaskStart) -> None:
        """Start a task; its output goes to the controller, or to a log if one is given."""
        if not start.may_be_warm:
            self._start_fresh(start)
            return
        answer = partial(self._on_fork, start)
        order = Order(start.command, start.whole_environment, start.directory, start.imports, answer)
        self._signals[start.name] = []
        if why := self._warm.start(order):
            answer(None, why)

    def _on_fork(self, start: TaskStart, process: ForkedProcess | None, why_not: str) -> None:
        self._send("task-started", name=start.name, why_not=why_not)
        if process is None:
            self._start_fresh(start)
        else:
            self._follow(start, process)
        for signum in self._signals.pop(start.name):
            self.signal(start.name, signum)

    def _start_fresh(self, start: TaskStart) -> None:
        try:
            process = _popen(start)
        except OSError as error:
            self.report_no_start(start, f"{start.command[0]} cannot be started in {start.directory}: {error.strerror}")
        else:
            self._follow(start, process)

    def _follow(self, start: TaskStart, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
        task = self._running[start.name] = _Task(start, process, os.pidfd_open(process.pid), time.monotonic())
        self._selector.register(task.exit_fd, selectors.EVENT_READ, partial(self._on_exit, task))
        for stream, pipe in task.streams().items():
            os.set_blocking(pipe.fileno(), False)
            self._open[pipe] = partial(self._forward, task, stream, pipe)
            if not self._paused:
                self._selector.register(pipe, selectors.EVENT_READ, self._open[pipe])

    def signal(self, name: str, signum: int) -> None:
        """Send a signal to a task, if it runs; it is not started again."""
        if name in self._signals:
            self._signals[name].append(signum)
            return
        self._backoffs.pop(name, None)
        if end := self._waiting.pop(name, None):
            self._send("task-ended", **end)
        if task := self._running.get(name):
            self._running[name] = replace(task, start=replace(task.start, restarts=False))
            task.process.send_signal(signum)

    def report_no_start(self, start: TaskStart, why: str) -> None:
        """Report that a task ended before it began, and why."""
        if start.log is None:
            self._unprinted += len(f"{why}\n".encode())
            self._send("output", name=start.name, stream="stderr", text=f"{why}\n")
        else:
            with suppress(OSError):  # the disk is full: the controller is told in any case
                start.log.write_text(f"{why}\n")
        now_s = time.time()
        self._report_end(start, name=start.name, exit_code=EXIT_CANNOT_START, why=why, pid=0, ended_s=now_s, ran_s=0.0)

    def _report_end(self, start: TaskStart, *, error_output: str = "", **end: object) -> None:
        end["error_output"] = error_output or end["why"]
        if not start.restarts:
            self._send("task-ended", **end)
            return
        wait_s = self._backoffs.setdefault(start.name, Backoff()).next_s(cast("float", end["ran_s"]))
        self._waiting[start.name] = end
        self._send("task-restarts", **end, again_s=wait_s)
        self._later.after(wait_s, partial(self._start_again, start))

    def _start_again(self, start: TaskStart) -> None:
        if self._waiting.pop(start.name, None):  # it was not ended in the meantime
            self.start(start)

    def printed(self, n_bytes: int) -> None:
        """Record that the controller has printed this many bytes of the output."""
        self._unprinted -= n_bytes
        self._pause_or_resume()

    def _forward(self, task: _Task, stream: str, pipe: IO[bytes]) -> None:
        if pipe not in self._open:
            return  # it was closed after the selector reported it
        if data := pipe.read(CHUNK_BYTES):
            if stream == "stderr":
                task.keep(data)
            self._unprinted += len(data)
            self._send("output", name=task.start.name, stream=stream, text=data.decode(errors="surrogateescape"))
            self._pause_or_resume()
        elif data is not None:  # the end of the stream; None: no data yet
            self._close(pipe)

    def _pause_or_resume(self) -> None:
        if (pause := self._unprinted >= WINDOW_BYTES) == self._paused:
            return
        self._paused = pause
        for pipe, forward in self._open.items():
            if pause:
                self._selector.unregister(pipe)
            else:
                self._selector.register(pipe, selectors.EVENT_READ, forward)

    def _close(self, pipe: IO[bytes]) -> None:
        del self._open[pipe]
        if not self._paused:
            self._selector.unregister(pipe)
        pipe.close()

    def _on_exit(self, task: _Task) -> None:
        self._selector.unregister(task.exit_fd)
        os.close(task.exit_fd)
        exit_code = task.process.wait()
        for stream, pipe in task.streams().items():
            # what is in the pipe now; what its descendants write later is passed on as it comes
            for _ in range(PIPE_CHUNKS):
                self._forward(task, stream, pipe)
        start = self._running.pop(task.start.name).start  # it may have been told not to start again
        self._report_end(
            start,
            name=start.name,
            exit_code=exit_code,
            why=last_line(start.log) if start.log else "",
            pid=task.process.pid,
            ended_s=time.time(),
            ran_s=time.monotonic() - task.began_s,
            error_output=task.kept.decode(errors="replace"),
        )


def _popen(task: TaskStart) -> subprocess.Popen[bytes]:
    environment = task.whole_environment
    if task.imports is not None:
        environment |= {**hook_variables(environment), IMPORTS: str(task.imports)}

    def start(stdout: IO[bytes] | int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            dies_with_parent(task.command, warned=task.log is None),  # otherwise it is a helper of ours
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            env=environment,
            cwd=task.directory,
        )

    if task.log is None:
        return start(subprocess.PIPE, subprocess.PIPE)
    with task.log.open("ab") as file:
        return start(file, subprocess.STDOUT)
