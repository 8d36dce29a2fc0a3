"""A child process that answers line by line, each within a deadline, because a call into a driver may never return.

The kernel kills it when this process dies: a process that waits in a driver would notice nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Self, cast

from laggard.logs import last_line_of
from laggard.system.child_process import dies_with_parent

KILL_DEADLINE_S = 1.0


class AnsweringProcess:
    """A child process that runs a module of ours, and the lines that it prints."""

    def __init__(self, module: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            dies_with_parent([sys.executable, "-P", "-m", module, *arguments]),
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environ),
        )
        self._pipe = cast("IO[bytes]", self._process.stdout)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        # A process that hangs in the driver ends when the driver returns, which may be never.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_DEADLINE_S)
        self._pipe.close()
        self._errors.close()

    def line(self, wait_s: float) -> bytes:
        """Return the next line."""
        until_s = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise TimeoutError(f"no answer within {wait_s:g} s")
                read = os.read(self._pipe.fileno(), 65536)
                if not read:
                    raise EOFError(self._end())
                self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _end(self) -> str:
        exit_code = self._process.wait(KILL_DEADLINE_S)
        how = f"exit code {exit_code}" if exit_code >= 0 else signal.Signals(-exit_code).name
        self._errors.seek(0)
        why = last_line_of(self._errors.read())
        return f"the check ended with {how}" + (f": {why}" if why else "")
