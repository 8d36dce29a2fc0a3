"""A user's command on a machine of a cluster, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.clusters.machines import Machine, wait_for
from tests.clusters.site import Site
from tests.integration.jobs import GOES_ON
from tests.processes import command_lines

__all__ = ["ClusterJob", "Watch", "environment"]

# Bounds a hang: on a quiet machine a job takes a tenth of this.
DEADLINE_S = 400.0


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return a user's environment: laggard on PATH, and two virtual devices on each node."""
    return {
        **base,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        "SHELL": "/bin/bash",
        "LAGGARD_VIRTUAL_GPUS": "2",
        "LAGGARD_REPORT": "0",
        # The machines share one memory.
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "200000000",
    }


class ClusterJob:
    """A command of a site's user on a machine, in the user's folder.

    Parameters
    ----------
    site, machine
        Where.
    base
        The environment, but for what ``environment`` adds.
    argv
        The command.
    terminal
        Whether it has a terminal, with a user at it.
    """

    def __init__(
        self,
        site: Site,
        machine: Machine,
        base: Mapping[str, str],
        *argv: str,
        terminal: bool = False,
    ) -> None:
        folder, variables = site.folder_of_user(), site.environment(environment(base))
        self._file = folder / "output"  # to which a batch script of its may append
        self._file.touch()
        site.give(self._file)
        argv = tuple(site.as_user(*argv))
        if terminal:
            self._screen, inside = pty.openpty()
            command = ("setsid", "--ctty", *argv)
            self.process = machine.start(*command, output=inside, keyboard=inside, cwd=folder, environment=variables)
            os.close(inside)
            threading.Thread(target=self._watch_screen, name="screen").start()
        else:
            with self._file.open("ab") as file:
                self.process = machine.start(*argv, output=file, cwd=folder, environment=variables)

    def type(self, text: str) -> None:
        """Type on the terminal."""
        os.write(self._screen, text.encode())

    def _watch_screen(self) -> None:
        with self._file.open("ab", buffering=0) as file, contextlib.suppress(OSError):  # the other end is closed
            while shown := os.read(self._screen, 1 << 16):
                file.write(shown)
        os.close(self._screen)

    @property
    def output(self) -> str:
        """What the command has written, with line breaks within laggard's lines undone."""
        return GOES_ON.sub(" ", self._file.read_text(errors="replace"))

    def wait_for(self, pattern: str, times: int = 1, *, outlived: bool = False) -> list[str]:
        """Wait until the output matches this many times; ``outlived``: the command may end before its children."""

        def look() -> bool:
            found = len(re.findall(pattern, self.output)) >= times
            assert found or outlived or self.process.poll() is None, f"it ended before {pattern!r}:\n{self.output}"
            return found

        try:
            wait_for(look, pattern, DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.output}") from None
        return re.findall(pattern, self.output)

    def finish(self) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in time:\n{self.output}") from None

    def end(self) -> None:
        """End the command, for the fixture."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)


class Watch:
    """Remembers what ran on a site's machines before, to find what is left behind."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._before = set(self._processes())

    def _processes(self) -> list[psutil.Process]:
        return [process for machine in self._site.machines() for process in machine.processes()]

    def left(self) -> list[str]:
        """Return the command lines of new processes."""
        new = [process for process in self._processes() if process not in self._before]
        return [line for line in command_lines(new) if not line.startswith(("slurmstepd", "slurmd"))]

    def expect_no_processes(self) -> None:
        """Wait until no process is left."""
        wait_for(lambda: not self.left(), "an end of all processes")

    def expect_nothing(self) -> None:
        """Wait until neither processes nor files are left."""
        self.expect_no_processes()
        files = {machine.name: self._site.find(machine) for machine in self._site.machines()}
        assert not any(files.values()), files
