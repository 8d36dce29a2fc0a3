"""A process that was forked by another one and adopted by this one: what ``subprocess.Popen`` is for others."""

from __future__ import annotations

import os
from typing import IO


class ForkedProcess:
    """A child of this process that something else has forked."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid  # its process id
        self.stdin = None
        self.stdout = stdout  # the ends of pipes that it writes to
        self.stderr = stderr
        self._exit_code: int | None = None

    def send_signal(self, signum: int) -> None:
        """Send it a signal, unless it is reaped."""
        if self._exit_code is None:
            os.kill(self.pid, signum)

    def wait(self) -> int:
        """Wait for its end, reap it and return its exit code: minus the signal number if a signal killed it."""
        if self._exit_code is None:
            _, status = os.waitpid(self.pid, 0)
            self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code
