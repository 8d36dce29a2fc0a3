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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from laggard.resilience.agent.context import Context
from laggard.resilience.agent.forked_process import ForkedProcess
from laggard.resilience.agent.hook import IMPORTS, hook_variables
from laggard.resilience.agent.imports import Imports
from laggard.resilience.agent.warm import Order, WarmProcess
from laggard.resilience.decision.backoff import Backoff
from laggard.resilience.wire.tasks import (
    Output,
    Printed,
    SignalTask,
    StartTask,
    Stream,
    TaskEnded,
    TaskStarted,
    WillRestart,
)
from laggard.resilience.wire.warm import Hooked, Imported
from laggard.system.child_process import dies_with_parent

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
class _Task:
    start: StartTask
    process: subprocess.Popen[bytes] | ForkedProcess
    exit_fd: int  # readable once the process has ended
    began_s: float
    kept: bytearray = field(default_factory=bytearray)  # the end of its standard error

    def keep(self, data: bytes) -> None:
        self.kept.extend(data)
        del self.kept[:-KEPT_BYTES]

    def streams(self) -> list[tuple[Stream, IO[bytes]]]:
        pipes: tuple[tuple[Stream, IO[bytes] | None], ...]
        pipes = ("stdout", self.process.stdout), ("stderr", self.process.stderr)
        return [(stream, pipe) for stream, pipe in pipes if pipe is not None]


class Tasks:
    """Starts tasks, passes on their output, and reports when they end."""

    def __init__(self, context: Context, warm: WarmProcess) -> None:
        self._context = context
        self._warm = warm
        self._imports = Imports()
        self._signals: dict[str, list[int]] = {}  # that came while a task was being forked
        self._backoffs: dict[str, Backoff] = {}
        self._waiting: dict[str, TaskEnded] = {}  # tasks to start again, with how they ended
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

    def look(self) -> None:
        """Report what the first copy has imported, if that is new."""
        if self._imports.begins():
            self._context.send(Hooked())
        if names := self._imports.look():
            self._context.send(Imported(tuple(names)))

    def start(self, task: StartTask) -> None:
        """Start a task."""
        if (imports := self._imports_of(task)) is not None:
            self._imports.watch(imports)
        try:
            self._context.folder.write(task.files)
        except OSError as error:
            self._report_no_start(task, f"{error.filename} cannot be written: {error.strerror}")
        else:
            self._begin(task)

    def _begin(self, task: StartTask) -> None:
        if not task.may_be_warm:
            self._start_fresh(task)
            return
        answer = partial(self._on_fork, task)
        order = Order(
            task.command, self._environment_of(task), self._directory_of(task), self._imports_of(task), answer
        )
        self._signals[task.name] = []
        if why := self._warm.start(order):
            answer(None, why)

    def _on_fork(self, task: StartTask, process: ForkedProcess | None, why_not: str) -> None:
        self._context.send(TaskStarted(task.name, why_not))
        if process is None:
            self._start_fresh(task)
        else:
            self._follow(task, process)
        for signum in self._signals.pop(task.name):
            self._signal(task.name, signum)

    def _start_fresh(self, task: StartTask) -> None:
        try:
            process = self._popen(task)
        except OSError as error:
            where = self._directory_of(task)
            self._report_no_start(task, f"{task.command[0]} cannot be started in {where}: {error.strerror}")
        else:
            self._follow(task, process)

    def _follow(self, start: StartTask, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
        task = self._running[start.name] = _Task(start, process, os.pidfd_open(process.pid), time.monotonic())
        self._context.selector.register(task.exit_fd, selectors.EVENT_READ, partial(self._on_exit, task))
        for stream, pipe in task.streams():
            os.set_blocking(pipe.fileno(), False)
            self._open[pipe] = partial(self._forward, task, stream, pipe)
            if not self._paused:
                self._context.selector.register(pipe, selectors.EVENT_READ, self._open[pipe])

    def signal(self, command: SignalTask) -> None:
        """Send a signal to a task, once it runs; it is not started again."""
        if command.name in self._signals:
            self._signals[command.name].append(command.signum)
        else:
            self._signal(command.name, command.signum)

    def _signal(self, name: str, signum: int) -> None:
        self._backoffs.pop(name, None)
        if end := self._waiting.pop(name, None):
            self._context.send(end)
        if task := self._running.get(name):
            self._running[name] = replace(task, start=replace(task.start, restarts=False))
            task.process.send_signal(signum)

    def _report_no_start(self, task: StartTask, why: str) -> None:
        """Report that a task ended before it began, and why."""
        line = f"{why}\n".encode(errors="surrogateescape")
        if task.relayed:
            self._unprinted += len(line)
            self._context.send(Output(task.name, "stderr", line))
        else:
            with suppress(OSError):  # the disk is full: the controller is told in any case
                self._context.folder.log_of(task.name).write_bytes(line)
        self._report_end(task, TaskEnded(task.name, EXIT_CANNOT_START, 0, time.time(), 0.0, why, why))

    def _report_end(self, task: StartTask, end: TaskEnded) -> None:
        if not task.restarts:
            self._context.send(end)
            return
        wait_s = self._backoffs.setdefault(task.name, Backoff()).next_s(end.ran_s)
        self._waiting[task.name] = end
        self._context.send(WillRestart(task.name, end.exit_code, end.why, wait_s))
        self._context.later.after(wait_s, partial(self._start_again, task))

    def _start_again(self, task: StartTask) -> None:
        if self._waiting.pop(task.name, None):  # it was not ended in the meantime
            self._begin(task)

    def printed(self, command: Printed) -> None:
        """Pass on more of the output, since so much of it was printed."""
        self._unprinted -= command.n_bytes
        self._pause_or_resume()

    def _forward(self, task: _Task, stream: Stream, pipe: IO[bytes]) -> None:
        if pipe not in self._open:
            return  # it was closed after the selector reported it
        if data := pipe.read(CHUNK_BYTES):
            if stream == "stderr":
                task.keep(data)
            self._unprinted += len(data)
            self._context.send(Output(task.start.name, stream, data))
            self._pause_or_resume()
        elif data is not None:  # the end of the stream; None: no data yet
            self._close(pipe)

    def _pause_or_resume(self) -> None:
        if (pause := self._unprinted >= WINDOW_BYTES) == self._paused:
            return
        self._paused = pause
        for pipe, forward in self._open.items():
            if pause:
                self._context.selector.unregister(pipe)
            else:
                self._context.selector.register(pipe, selectors.EVENT_READ, forward)

    def _close(self, pipe: IO[bytes]) -> None:
        del self._open[pipe]
        if not self._paused:
            self._context.selector.unregister(pipe)
        pipe.close()

    def _on_exit(self, task: _Task) -> None:
        self._context.selector.unregister(task.exit_fd)
        os.close(task.exit_fd)
        exit_code = task.process.wait()
        for stream, pipe in task.streams():
            # what is in the pipe now; what its descendants write later is passed on as it comes
            for _ in range(PIPE_CHUNKS):
                self._forward(task, stream, pipe)
        start = self._running.pop(task.start.name).start  # it may have been told not to start again
        why = "" if start.relayed else self._context.folder.last_line_of(start.name)
        ran_s = time.monotonic() - task.began_s
        errors = task.kept.decode(errors="replace") or why
        self._report_end(start, TaskEnded(start.name, exit_code, task.process.pid, time.time(), ran_s, errors, why))

    def _environment_of(self, task: StartTask) -> dict[str, str]:
        return self._context.folder.environment(task.environment, writes_stacks=task.writes_stacks)

    def _directory_of(self, task: StartTask) -> str:
        return task.directory or str(self._context.folder.path)

    def _imports_of(self, task: StartTask) -> Path | None:
        return self._context.folder.path / f"imports-{task.name}.txt" if task.records_imports else None

    def _popen(self, task: StartTask) -> subprocess.Popen[bytes]:
        environment = self._environment_of(task)
        if (imports := self._imports_of(task)) is not None:
            environment |= {**hook_variables(environment), IMPORTS: str(imports)}

        def start(stdout: IO[bytes] | int, stderr: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                dies_with_parent(task.command, warned=task.relayed),  # otherwise it is a helper of ours
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                env=environment,
                cwd=self._directory_of(task),
            )

        if task.relayed:
            return start(subprocess.PIPE, subprocess.PIPE)
        with self._context.folder.log_of(task.name).open("ab") as file:
            return start(file, subprocess.STDOUT)
