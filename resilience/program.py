"""The user's program: one process of a launch on the primary node, with the terminal as its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvstore.tether import tethered

__all__ = ["JOB_CONFIG", "Program", "ProgramError", "command_of"]

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


class ProgramError(ValueError):
    """The program does not exist or cannot be run."""


def command_of(program: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a program: a Python file runs with this interpreter, anything else as it is.

    Raises
    ------
    ProgramError
        If there is no such file or command, or it cannot be run.
    """
    path = Path(program)
    if path.is_dir():
        raise ProgramError(f"{program} is a directory, not a program")
    if path.suffix == ".py":
        if not path.is_file():
            raise ProgramError(f"there is no program {program}")
        if not os.access(path, os.R_OK):
            raise ProgramError(f"{program} cannot be read: check its permissions")
        return [sys.executable, program, *arguments]
    found = shutil.which(program)
    if found is None and path.is_file():
        raise ProgramError(f"{program} cannot be run: make it executable (chmod +x) or give a .py file")
    if found is None:
        raise ProgramError(f"there is no program {program}, as a file or on PATH")
    return [found, *arguments]


class Program:
    """The program of one launch, running.

    Its end is announced on ``news``. The kernel kills it when the thread that started it ends: use the main one.

    Parameters
    ----------
    command
        Command line.
    launch
        Number of the launch: each process that the program starts on any node carries it.
    environment
        Variables beside the controller's own.
    news
        Announced when the program has ended.
    """

    def __init__(
        self, command: Sequence[str], launch: int, environment: Mapping[str, str], news: threading.Condition
    ) -> None:
        variables = {"LAGGARD_LAUNCH": str(launch)}
        # Ray gives these to every worker of the program, and to what the workers start.
        job_config = json.loads(environment.get(JOB_CONFIG, "{}"))
        runtime_env = job_config.setdefault("runtime_env", {})
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **variables}
        self._process = subprocess.Popen(
            tethered(command),
            env={
                **os.environ,
                # Ray's greetings; a user who wants them sets the variable
                "RAY_LOGGER_LEVEL": os.environ.get("RAY_LOGGER_LEVEL", "warning"),
                # else every SIGTERM would print a stack: for the program it is the usual way to be asked to stop
                "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
                **environment,
                **variables,
                JOB_CONFIG: json.dumps(job_config),
            },
        )
        self.exit_code: int | None = None
        self._news = news
        self._watcher = threading.Thread(target=self._watch, name=f"program-{launch}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.exit_code is not None

    def ask_to_stop(self) -> None:
        """Tell the program to save what it must and end (SIGTERM)."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program at once and wait until it has ended."""
        self._process.kill()
        self._watcher.join()

    def wait(self, deadline_s: float) -> bool:
        """Wait for the program's end; return whether it came."""
        with self._news:
            return self._news.wait_for(lambda: self.exit_code is not None, deadline_s)

    def _watch(self) -> None:
        exit_code = self._process.wait()
        with self._news:
            self.exit_code = exit_code
            self._news.notify_all()
