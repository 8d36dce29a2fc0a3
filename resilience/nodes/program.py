"""The user's program as one process on the primary node, attached to the terminal."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

from laggard.kvstore.client.environment import LAUNCH
from laggard.resilience.agent.processes import ask_to_end, state_of
from laggard.resilience.decision.origin import EXIT_ERROR, ProcessEnd
from laggard.resilience.errors import ProcessesStillRunningError, ProgramError
from laggard.resilience.nodes.stderr_tee import StderrTee
from laggard.resilience.record.error_log import TakeErrors
from laggard.system.child_process import dies_with_parent

KILL_DEADLINE_S = 5.0
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"

# Longer only if our terminal has stopped, or is very slow.
DRAIN_DEADLINE_S = 2.0


def command_of(program: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a program; a Python file is run by this interpreter."""
    path = Path(program)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise ProgramError(program, "is a folder without a __main__.py: name the file to run")
        return [sys.executable, program, *arguments]
    if path.suffix == ".ipynb":
        raise ProgramError(program, f"is a notebook: 'jupyter nbconvert --to script {program}' makes a program of it")
    if path.suffix == ".py":
        if not path.is_file() and len(words := program.split()) > 1:
            raise _quoted(program, words)
        if not path.is_file():
            raise ProgramError(program, "does not exist")
        if not os.access(path, os.R_OK):
            raise ProgramError(program, "cannot be read: check its permissions")
        return [sys.executable, program, *arguments]
    found = shutil.which(program)
    if found is None and path.is_file() and os.access(path, os.X_OK):
        raise ProgramError(program, f"is not on PATH: to run the file of this folder, write ./{program}")
    if found is None and path.is_file():
        raise ProgramError(program, "cannot be run: make it executable (chmod +x) or give a .py file")
    if found is None and len(words := program.split()) > 1:
        raise _quoted(program, words)
    if found is None:
        raise ProgramError(program, "is not a program, neither a file nor on PATH")
    return [found, *arguments]


def _quoted(program: str, words: Sequence[str]) -> ProgramError:
    return ProgramError(repr(program), f"is one word, not a command: leave out the quotes ({shlex.join(words)})")


def command_of_module(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a module that is run as a program by this interpreter, as ``python -m`` does."""
    package = name.partition(".")[0]
    if package not in sys.builtin_module_names and PathFinder.find_spec(package, ["", *sys.path]) is None:
        raise ProgramError(name, "is not a module, neither of this folder nor an installed one")
    return [sys.executable, "-m", name, *arguments]


class Program:
    """The program of one launch, running; its standard error is copied to ours, and the last lines of it are kept.

    Start it from the main thread: the kernel kills it when the thread that started it ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        launch: int,
        environment: Mapping[str, str],
        changed: threading.Condition,
        host: str,
        take_errors: TakeErrors = lambda *_: None,
    ) -> None:
        self._host = host  # the node that it runs on
        self._began_s, self._ran_s, self._ended_s = time.monotonic(), 0.0, 0.0
        self._stderr = StderrTee(take=partial(take_errors, host, None))
        if self._stderr.is_terminal:  # the kernel announces a new window size, but does not know of the copy
            signal.signal(signal.SIGWINCH, lambda *_: self._stderr.resize())
        try:
            self._process = subprocess.Popen(
                dies_with_parent(command), env=_environment(launch, environment), stderr=self._stderr.child_fd
            )
        finally:
            self._stderr.close_child_fd()
        self.exit_code: int | None = None
        self._changed = changed  # notified when the program has ended
        self._watcher = threading.Thread(target=self._watch, name=f"program-{launch}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.exit_code is not None

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines of its standard error, as plain text; complete once it has ended."""
        return self._stderr.last_lines()

    def failed(self) -> list[ProcessEnd]:
        """Return the program if it has ended badly."""
        return [self._end(self.exit_code)] if self.exit_code else []

    def lingering(self, silent_s: float) -> list[ProcessEnd]:
        """Return the program if it runs, with what it has written so far, as if it had failed."""
        return [] if self.ended else [replace(self._end(EXIT_ERROR), lingers_s=silent_s)]

    def _end(self, exit_code: int) -> ProcessEnd:
        return ProcessEnd(self._host, self.pid, exit_code, self._ended_s, self._ran_s, self.last_lines, stays=True)

    def ask_to_stop(self, signum: int) -> None:
        """Ask the program to save its state and end; a terminal's Ctrl-C has reached it already."""
        # A second Ctrl-C would interrupt what it saves.
        if self.exit_code is None and not (signum == signal.SIGINT and _gets_ctrl_c()):
            ask_to_end(self._process, signum)

    def kill(self, deadline_s: float = KILL_DEADLINE_S) -> None:
        """Kill the program and wait until it has ended."""
        self._process.kill()
        self._watcher.join(deadline_s)
        if self._watcher.is_alive():
            raise ProcessesStillRunningError([self.pid], deadline_s, [state_of(self.pid)])

    def wait(self, deadline_s: float) -> bool:
        """Wait until the program ends; return whether it did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.exit_code is not None, deadline_s)

    def _watch(self) -> None:
        exit_code = self._process.wait()
        self._ran_s, self._ended_s = time.monotonic() - self._began_s, time.time()
        # The copying goes on: processes that the program has left may still write, until they end or are ended.
        self._stderr.drain(DRAIN_DEADLINE_S)
        with self._changed:
            self.exit_code = exit_code
            self._changed.notify_all()


def _gets_ctrl_c() -> bool:
    """Return whether our process group, which the program is in too, is in the foreground of a terminal."""
    with suppress(OSError), Path("/dev/tty").open("rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _environment(launch: int, environment: Mapping[str, str]) -> dict[str, str]:
    variables = {LAUNCH: str(launch)}
    # Ray sets these for every worker of the program, and so for whatever the workers start.
    job_config = json.loads(environment.get(JOB_CONFIG, "{}"))
    runtime_env = job_config.setdefault("runtime_env", {})
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **variables}
    return {
        **os.environ,
        # hides Ray's start-up messages, unless the user sets the variable
        "RAY_LOGGER_LEVEL": os.environ.get("RAY_LOGGER_LEVEL", "warning"),
        # otherwise each SIGTERM, our usual way to ask the program to stop, would print a stack
        "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
        **environment,
        **variables,
        JOB_CONFIG: json.dumps(job_config),
    }
