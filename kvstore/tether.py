"""A child process that the kernel kills when we die, however we die."""

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

__all__ = ["TetheredProcess", "tethered"]

# Runs in the child first: asks the kernel to kill it together with its parent, then becomes the program.
# A little program of its own rather than a hook between fork and exec, which can deadlock in a process with threads.
_TETHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("parent is gone")
signal.pthread_sigmask(signal.SIG_BLOCK, [int(number) for number in sys.argv[2].split()])
os.execv(sys.argv[3], sys.argv[3:])
"""
_PRIVATE = 0o077
_TAIL_LINES = 30
_DRAIN_S = 1.0


def tethered(command: Sequence[str], deaf_to: Sequence[signal.Signals] = ()) -> list[str]:
    """Return a command line that runs `command` and is killed by the kernel when the thread that starts it ends.

    Parameters
    ----------
    command : list of str
        Path of the program and its arguments.
    deaf_to : list of signal.Signals
        Signals that it never gets.
    """
    numbers = " ".join(str(signum.value) for signum in deaf_to)
    return [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), numbers, *command]


class TetheredProcess:
    """A program in a session of its own, out of reach of the terminal's Ctrl-C; its files are its user's alone.

    Its output is added to a log file, and the last lines are kept in memory too: a program that ends because the disk
    is full cannot say so on that disk.

    Parameters
    ----------
    command : list of str
        Path of the program and its arguments.
    stdin : bytes
        What it reads on standard input, less than a pipe holds (64 KiB).
    directory : Path
        Where it runs.
    log : Path
        File that its output is added to; made with mode 0600.
    inherit_fd : int
        Descriptor that it gets besides the usual three.

    Attributes
    ----------
    pid : int
    process : subprocess.Popen
    """

    def __init__(self, command: list[str], *, stdin: bytes, directory: Path, log: Path, inherit_fd: int) -> None:
        log.touch(mode=0o600)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ended = False
        self._news = threading.Condition()
        started: Future[subprocess.Popen[bytes]] = Future()

        def guard() -> None:
            try:
                process = _popen(command, stdin, directory, inherit_fd)
            except OSError as error:
                started.set_exception(error)
            else:
                started.set_result(process)
                self._follow(process, log)

        # The kernel ties a child to the thread that made it, so that thread must last as long as the child does.
        self._guard = threading.Thread(target=guard, name="laggard-tether", daemon=True)
        self._guard.start()
        self.process = started.result()
        self.pid = self.process.pid

    def wait_for(self, text: str, timeout_s: float) -> bool:
        """Wait until a line of output has this text in it; False if the output ended or time is up."""
        with self._news:
            self._news.wait_for(lambda: self._ended or any(text in line for line in self._tail), timeout_s)
            return any(text in line for line in self._tail)

    def last_words(self) -> str:
        """Return the last lines of output, once all of it is there if the process has ended."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self.process.poll() is None, _DRAIN_S)
            return "".join(self._tail)

    def _follow(self, process: subprocess.Popen[bytes], log: Path) -> None:
        output = cast("IO[bytes]", process.stdout)
        with output, log.open("ab", buffering=0) as file:
            for line in output:
                with self._news:
                    self._tail.append(line.decode(errors="replace"))
                    self._news.notify_all()
                with suppress(OSError):
                    file.write(line)
        process.wait()
        with self._news:
            self._ended = True
            self._news.notify_all()


def _popen(command: list[str], stdin: bytes, directory: Path, inherit_fd: int) -> subprocess.Popen[bytes]:
    reader, writer = os.pipe()
    os.write(writer, stdin)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        return subprocess.Popen(
            # Who ends a whole job, as Slurm does, sends it to every process; this one is needed until all have ended.
            tethered(command, deaf_to=[signal.SIGTERM]),
            cwd=directory,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(inherit_fd,),
            start_new_session=True,
            umask=_PRIVATE,
        )
