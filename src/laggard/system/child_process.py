"""A child process that the kernel kills when this process dies, for whatever reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

# Runs first in the child: asks the kernel to kill it when its parent dies, then becomes the program.
# A separate program rather than a hook between fork and exec, which can deadlock in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has exited")
signal.pthread_sigmask(signal.SIG_BLOCK, [int(number) for number in sys.argv[2].split()])
for warning in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(warning, signal.SIG_DFL if sys.argv[3] == "warned" else signal.SIG_IGN)
if sys.argv[3] == "warned":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # else Python would not raise KeyboardInterrupt
os.execv(sys.argv[4], sys.argv[4:])
"""
_PRIVATE = 0o077  # umask
_TAIL_LINES = 30  # what fits on a screen
# The report of a server that crashes has hundreds of lines, after the one that says why.
_KEPT_LINES = 1000
_DRAIN_S = 1.0  # the rest of its output is in the pipe already


def dies_with_parent(
    command: Sequence[str], blocked: Sequence[signal.Signals] = (), *, warned: bool = True
) -> list[str]:
    """Return a command line that runs `command`, and that the kernel kills when the thread that starts it ends."""
    numbers = " ".join(str(signum.value) for signum in blocked)
    warning = "warned" if warned else "unwarned"
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), numbers, warning, *command]


class ChildProcess:
    """A program in its own session, out of reach of the terminal's Ctrl-C; only its user can open the files it creates.

    Its output is appended to a log file, and the last lines are also kept in memory: a program that exits because the
    disk is full cannot log that on the same disk.
    """

    def __init__(self, command: list[str], *, stdin: bytes, directory: Path, log: Path, inherit_fd: int) -> None:
        log.touch(mode=0o600)
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ended = False
        self._changed = threading.Condition()
        started: Future[subprocess.Popen[bytes]] = Future()

        def guard() -> None:
            try:
                process = _popen(command, stdin, directory, inherit_fd)
            except OSError as error:
                started.set_exception(error)
            else:
                started.set_result(process)
                self._follow(process, log)

        # The kernel ties a child to the thread that started it, so that thread must outlive the child.
        self._guard = threading.Thread(target=guard, name="laggard-child", daemon=True)
        self._guard.start()
        self.process = started.result()
        self.pid = self.process.pid

    def wait_for(self, text: str, timeout_s: float) -> bool:
        """Wait until a line of output contains this text; False if the output ends first or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(text in line for line in self._tail), timeout_s)
            return any(text in line for line in self._tail)

    def last_output(self) -> str:
        """Return the last lines of output; of a process that has ended, the very last."""
        return "".join(self.output().splitlines(keepends=True)[-_TAIL_LINES:])

    def output(self) -> str:
        """Return what is kept of the output; of a process that has ended, the very last is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.process.poll() is None, _DRAIN_S)
            return "".join(self._tail)

    def _follow(self, process: subprocess.Popen[bytes], log: Path) -> None:
        output = cast("IO[bytes]", process.stdout)
        with output, log.open("ab", buffering=0) as file:
            for line in output:
                with self._changed:
                    self._tail.append(line.decode(errors="replace"))
                    self._changed.notify_all()
                with suppress(OSError):
                    file.write(line)
        process.wait()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _popen(command: list[str], stdin: bytes, directory: Path, inherit_fd: int) -> subprocess.Popen[bytes]:
    reader, writer = os.pipe()
    os.write(writer, stdin)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        return subprocess.Popen(
            # Slurm ends a job by sending SIGTERM to every process; this one is needed until all others have ended.
            dies_with_parent(command, blocked=[signal.SIGTERM], warned=False),
            cwd=directory,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(inherit_fd,),
            start_new_session=True,
            umask=_PRIVATE,
        )
