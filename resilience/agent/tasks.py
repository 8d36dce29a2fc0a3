"""The tasks of a node: processes that its agent starts, and starts again if it is asked to.

The ranks of a ``--per-node`` program are tasks, and so are the probes of ``--detect``; those have the number of their
launch in their environment, by which leftovers are found. Sidecars are tasks that outlive launches. A task's output is
passed on as it comes, but no more than `WINDOW_BYTES` that the controller has not printed yet: a task whose output
nobody reads blocks, as on any pipe.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from laggard.resilience.agent.context import Context
from laggard.resilience.agent.forked_process import ForkedProcess
from laggard.resilience.agent.hook import IMPORTS, hook_variables
from laggard.resilience.agent.imports import Imports
from laggard.resilience.agent.processes import ask_to_end
from laggard.resilience.agent.warm import WarmProcess
from laggard.resilience.wire import tasks as wire
from laggard.resilience.wire.warm import Imported, Run, SayImports
from laggard.system.child_process import dies_with_parent

EXIT_CANNOT_START = 127
# A helper that ends is started again after a second, then twice as long each time, until it has run for a while.
LONGEST_WAIT_S, GOOD_RUN_S = 60.0, 60.0
CHUNK_BYTES = 1 << 16
# A full pipe holds 64 KiB. It may take two reads, and a third to see that it is empty.
PIPE_CHUNKS = 3
# Output on its way to the controller's terminal, of all tasks of the node together.
WINDOW_BYTES = 1 << 18
# How Python begins to say why; a box around it begins a little later.
TRACEBACK = b"Traceback (most recent call last)"
# Of each task's standard error, to say later why it ended.
KEPT_BYTES = 1 << 16
# Of tasks that have not ended; all of them are asked at once.
NEWEST_BYTES = 1 << 13


@dataclass(slots=True, eq=False)
class _Task:
    start: wire.StartTask
    process: subprocess.Popen[bytes] | ForkedProcess
    exit_fd: int  # readable once the process has ended
    began_s: float
    kept: bytearray = field(default_factory=bytearray)  # the end of its standard error
    raised_s: float = 0.0  # when its last traceback began (Unix time); 0: it has none

    def keep(self, data: bytes) -> None:
        if TRACEBACK in data:
            self.raised_s = time.time()
        self.kept.extend(data)
        del self.kept[:-KEPT_BYTES]

    def streams(self) -> list[tuple[wire.Stream, IO[bytes]]]:
        pipes: tuple[tuple[wire.Stream, IO[bytes] | None], ...]
        pipes = ("stdout", self.process.stdout), ("stderr", self.process.stderr)
        return [(stream, pipe) for stream, pipe in pipes if pipe is not None]


class Tasks:
    """Starts tasks, passes on their output, and reports when they end."""

    def __init__(self, context: Context, warm: WarmProcess) -> None:
        self._context = context
        self._warm = warm
        self._imports = Imports()
        self._signals: dict[str, list[int]] = {}  # that came while a task was being forked
        self._waits_s: dict[str, float] = {}  # before a helper was last started again
        self._waiting: dict[str, wire.TaskEnded] = {}  # tasks to start again, with how they ended
        self._running: list[_Task] = []
        self._open: dict[IO[bytes], Callable[[], None]] = {}
        self._unprinted = 0
        self._paused = False
        context.inbox.on(wire.StartTask, self.start)
        context.inbox.on(wire.SignalTask, self.signal)
        context.inbox.on(wire.Printed, self.printed)
        context.inbox.on(SayImports, lambda _: self.look(is_at_work=True))

    @property
    def pids(self) -> set[int]:
        """Process ids of those that run."""
        return {task.process.pid for task in self._running}

    @property
    def has_any_of_a_launch(self) -> bool:
        """Whether one runs that may have to save its work."""
        return any(not task.start.outlives_launches for task in self._running)

    def newest_error_output(self) -> dict[str, str]:
        """Return the newest lines of the standard error of each running task whose output is passed on."""
        return {
            task.start.name: bytes(task.kept[-NEWEST_BYTES:]).decode(errors="replace")
            for task in self._running
            if task.kept
        }

    def look(self, *, is_at_work: bool = False) -> None:
        """Report what the first rank has imported, if that is new."""
        if names := self._imports.look(is_at_work=is_at_work):
            self._context.send(Imported(tuple(names)))

    def start(self, start: wire.StartTask) -> None:
        """Start a task."""
        if imports := self._run_of(start).imports:
            self._imports.watch(Path(imports))
        try:
            self._context.folder.write(start.files)
        except OSError as error:
            self._report_no_start(start, f"{error.filename} cannot be written: {error.strerror}")
        else:
            self._begin(start)

    def _run_of(self, start: wire.StartTask) -> Run:
        folder = self._context.folder
        environment = folder.environment(start.environment, writes_stacks=start.writes_stacks)
        imports = str(folder.path / f"imports-{start.name}.txt") if start.records_imports else None
        return Run(environment, start.directory or str(folder.path), imports)

    def _begin(self, start: wire.StartTask) -> None:
        if not start.may_be_warm:
            self._start_fresh(start)
            return
        answer = partial(self._on_fork, start)
        self._signals[start.name] = []
        if why := self._warm.start(self._run_of(start), answer):
            answer(None, why)

    def _on_fork(self, start: wire.StartTask, process: ForkedProcess | None, why_not: str) -> None:
        self._context.send(wire.TaskStarted(start.name, why_not))
        if process is None:
            self._start_fresh(start)
        else:
            self._follow(start, process)
        for signum in self._signals.pop(start.name):
            self.signal(wire.SignalTask(start.name, signum))

    def _start_fresh(self, start: wire.StartTask) -> None:
        run = self._run_of(start)
        try:
            process = self._popen(start, run)
        except OSError as error:
            why = f"{start.command[0]} cannot be started in {run.directory}: {error.strerror}"
            self._report_no_start(start, why)
        else:
            self._follow(start, process)

    def _popen(self, start: wire.StartTask, run: Run) -> subprocess.Popen[bytes]:
        hooked = {**hook_variables(run.environment), IMPORTS: run.imports} if run.imports else {}
        warned = start.relayed  # otherwise it is a helper of ours
        with contextlib.ExitStack() as opened:
            log = None if start.relayed else opened.enter_context(self._context.folder.log_of(start.name).open("ab"))
            return subprocess.Popen(
                start.command if start.outlives_launches else dies_with_parent(start.command, warned=warned),
                stdin=subprocess.PIPE if start.outlives_launches else subprocess.DEVNULL,
                stdout=log or subprocess.PIPE,
                stderr=log or subprocess.PIPE,
                bufsize=0,
                env={**run.environment, **hooked},
                cwd=run.directory,
            )

    def _follow(self, start: wire.StartTask, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
        task = _Task(start, process, os.pidfd_open(process.pid), time.monotonic())
        self._running.append(task)
        self._context.selector.register(task.exit_fd, selectors.EVENT_READ, partial(self._on_exit, task))
        for stream, pipe in task.streams():
            os.set_blocking(pipe.fileno(), False)
            self._open[pipe] = partial(self._forward, task, stream, pipe)
            if not self._paused:
                self._context.selector.register(pipe, selectors.EVENT_READ, self._open[pipe])

    def signal(self, command: wire.SignalTask) -> None:
        """Send a signal to a task, once it runs; it is not started again."""
        name = command.name
        if name in self._signals:
            self._signals[name].append(command.signum)
            return
        self._waits_s.pop(name, None)
        if end := self._waiting.pop(name, None):
            self._context.send(end)
        for task in [task for task in self._running if task.start.name == name]:
            task.start = replace(task.start, restarts=False)
            ask_to_end(task.process, command.signum)

    def _report_no_start(self, start: wire.StartTask, why: str) -> None:
        """Report that a task ended before it began, and why."""
        line = f"{why}\n".encode(errors="surrogateescape")
        if start.relayed:
            self._unprinted += len(line)
            self._context.send(wire.Output(start.name, "stderr", line))
        else:
            with contextlib.suppress(OSError):  # the disk is full: the controller is told in any case
                self._context.folder.log_of(start.name).write_bytes(line)
        self._report_end(start, wire.TaskEnded(start.name, EXIT_CANNOT_START, 0, time.time(), 0.0, why, why))

    def _report_end(self, start: wire.StartTask, end: wire.TaskEnded) -> None:
        if not start.restarts:
            self._context.send(end)
            return
        last_s = 0.0 if end.ran_s >= GOOD_RUN_S else self._waits_s.get(start.name, 0.0)
        wait_s = self._waits_s[start.name] = min(max(1.0, 2 * last_s), LONGEST_WAIT_S)
        self._waiting[start.name] = end
        self._context.send(wire.WillRestart(start.name, end.exit_code, end.why, wait_s))
        self._context.later.after(wait_s, partial(self._start_again, start, end))

    def _start_again(self, start: wire.StartTask, end: wire.TaskEnded) -> None:
        if self._waiting.get(start.name) is end:  # it was not ended in the meantime
            del self._waiting[start.name]
            self._begin(start)

    def printed(self, command: wire.Printed) -> None:
        """Pass on more of the output, since so much of it was printed."""
        self._unprinted -= command.n_bytes
        self._pause_or_resume()

    def _forward(self, task: _Task, stream: wire.Stream, pipe: IO[bytes]) -> None:
        if pipe not in self._open:
            return  # it was closed after the selector reported it
        if data := pipe.read(CHUNK_BYTES):
            if stream == "stderr":
                task.keep(data)
            self._unprinted += len(data)
            self._context.send(wire.Output(task.start.name, stream, data))
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
        ended_s = time.time()
        self._running.remove(task)
        self._context.selector.unregister(task.exit_fd)
        os.close(task.exit_fd)
        exit_code = task.process.wait()
        if task.process.stdin is not None:
            task.process.stdin.close()
        for stream, pipe in task.streams():
            # what is in the pipe now; what its descendants write later is passed on as it comes
            for _ in range(PIPE_CHUNKS):
                self._forward(task, stream, pipe)
        name, pid, ran_s = task.start.name, task.process.pid, time.monotonic() - task.began_s
        why = "" if task.start.relayed else self._context.folder.last_line_of(name)
        errors = task.kept.decode(errors="replace") or why
        self._report_end(task.start, wire.TaskEnded(name, exit_code, pid, ended_s, ran_s, errors, why, task.raised_s))
