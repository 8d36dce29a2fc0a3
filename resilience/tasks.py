"""The tasks of a node: processes of one launch, started by the node's agent.

The copies of a program that runs on every node are tasks, and so are the probes of ``--detect``. A task carries its
launch's number, so that a sweep ends what it leaves. Its output is handed on as it comes, but only so much of it as the
controller has not printed yet: a task whose output nobody reads blocks, as it would on any pipe.
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from kvstore.tether import tethered

__all__ = ["Tasks"]

EXIT_CANNOT_START = 127
CHUNK_BYTES = 1 << 16
# A full pipe holds 64 KiB; it may be read in two parts, and then tells that it is empty.
PIPE_CHUNKS = 3
# How much may be on its way to the controller's terminal: of one node, all tasks together.
WINDOW_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    process: subprocess.Popen[bytes]
    end: int  # tells of its end

    def streams(self) -> dict[str, IO[bytes]]:
        pipes = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        return {name: pipe for name, pipe in pipes.items() if pipe is not None}


class Tasks:
    """Starts tasks, hands on their output, and tells of their end.

    Parameters
    ----------
    selector
        The agent's; what is registered with it is called when it is ready.
    say
        Tells the controller.
    """

    def __init__(self, selector: selectors.BaseSelector, say: Callable[..., None]) -> None:
        self._selector = selector
        self._say = say
        self._running: dict[str, _Task] = {}
        self._open: dict[IO[bytes], Callable[[], None]] = {}
        self._unprinted = 0
        self._paused = False

    @property
    def pids(self) -> set[int]:
        """The processes of the tasks that run."""
        return {task.process.pid for task in self._running.values()}

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: str, log: Path | None
    ) -> None:
        """Start a task; its output goes to the controller, or to a log where one is named."""
        try:
            process = _popen(command, {**os.environ, **environment}, directory, log)
        except OSError as error:
            why = f"{command[0]} cannot be started in {directory}: {error.strerror}\n"
            if log is None:
                self._unprinted += len(why.encode())
                self._say("output", name=name, stream="stderr", text=why)
            else:
                log.write_text(why)
            self._say("task-ended", name=name, exit_code=EXIT_CANNOT_START)
            return
        task = self._running[name] = _Task(name, process, os.pidfd_open(process.pid))
        self._selector.register(task.end, selectors.EVENT_READ, partial(self._ended, task))
        for stream, pipe in task.streams().items():
            os.set_blocking(pipe.fileno(), False)
            self._open[pipe] = partial(self._hand_on, task, stream, pipe)
            if not self._paused:
                self._selector.register(pipe, selectors.EVENT_READ, self._open[pipe])

    def signal(self, name: str, signum: int) -> None:
        """Send a signal to a task, if it runs."""
        if task := self._running.get(name):
            task.process.send_signal(signum)

    def printed(self, n_bytes: int) -> None:
        """Take note that the controller has printed so much of the output."""
        self._unprinted -= n_bytes
        self._pace()

    def _hand_on(self, task: _Task, stream: str, pipe: IO[bytes]) -> None:
        if pipe not in self._open:
            return  # closed since the selector saw it
        if data := pipe.read(CHUNK_BYTES):
            self._unprinted += len(data)
            self._say("output", name=task.name, stream=stream, text=data.decode(errors="surrogateescape"))
            self._pace()
        elif data is not None:  # its end; None: nothing there yet
            self._close(pipe)

    def _pace(self) -> None:
        if (pause := self._unprinted >= WINDOW_BYTES) == self._paused:
            return
        self._paused = pause
        for pipe, hand_on in self._open.items():
            if pause:
                self._selector.unregister(pipe)
            else:
                self._selector.register(pipe, selectors.EVENT_READ, hand_on)

    def _close(self, pipe: IO[bytes]) -> None:
        del self._open[pipe]
        if not self._paused:
            self._selector.unregister(pipe)
        pipe.close()

    def _ended(self, task: _Task) -> None:
        self._selector.unregister(task.end)
        os.close(task.end)
        exit_code = task.process.wait()
        for stream, pipe in task.streams().items():
            # a pipe's content at most; what its descendants write later is handed on as it comes
            for _ in range(PIPE_CHUNKS):
                self._hand_on(task, stream, pipe)
        del self._running[task.name]
        self._say("task-ended", name=task.name, exit_code=exit_code)


def _popen(
    command: Sequence[str], environment: Mapping[str, str], directory: str, log: Path | None
) -> subprocess.Popen[bytes]:
    def start(stdout: IO[bytes] | int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            tethered(command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            env=environment,
            cwd=directory,
        )

    if log is None:
        return start(subprocess.PIPE, subprocess.PIPE)
    with log.open("ab") as file:
        return start(file, subprocess.STDOUT)
