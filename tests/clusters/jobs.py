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
from pathlib import Path

import psutil

from tests.clusters.machines import PRIVATE, Machine, Network, wait_for
from tests.integration.jobs import GOES_ON
from tests.processes import command_lines

__all__ = ["ClusterJob", "Watch", "environment"]

# Bounds a hang: on a quiet machine a job takes a tenth of this.
DEADLINE_S = 400.0


def environment(base: dict[str, str]) -> dict[str, str]:
    """Return a user's environment: laggard on PATH, each node with its own folder and two virtual devices."""
    return {
        **base,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        "SHELL": "/bin/bash",
        "LAGGARD_RUNTIME_ROOT": PRIVATE,
        "LAGGARD_VIRTUAL_GPUS": "2",
        "LAGGARD_REPORT": "0",
        # The machines share one memory.
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "200000000",
    }


class ClusterJob:
    """A command on a machine, its output in a file; with ``terminal`` it has a terminal, with a user at it."""

    def __init__(
        self, machine: Machine, folder: Path, environment: dict[str, str], *argv: str, terminal: bool = False
    ) -> None:
        self.folder = folder
        self._file = folder / "output"
        self._file.touch()
        if terminal:
            self._screen, inside = pty.openpty()
            command = ("setsid", "--ctty", *argv)
            self.process = machine.start(*command, output=inside, keyboard=inside, cwd=folder, environment=environment)
            os.close(inside)
            threading.Thread(target=self._watch_screen, name="screen").start()
        else:
            with self._file.open("ab") as output:
                self.process = machine.start(*argv, output=output, cwd=folder, environment=environment)

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
    """Remembers what ran on the machines before, to find what is left behind."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._before = set(self._processes())

    def _processes(self, *names: str) -> list[psutil.Process]:
        machines = {**self._network.nodes, "login": self._network.login}
        return [process for name in names or machines for process in machines[name].processes()]

    def left(self, *names: str) -> list[str]:
        """Return the command lines of new processes, on these machines or on all."""
        new = [process for process in self._processes(*names) if process not in self._before]
        return [line for line in command_lines(new) if not line.startswith(("slurmstepd", "slurmd"))]

    def expect_no_processes(self) -> None:
        """Wait until no process is left."""
        wait_for(lambda: not self.left(), "an end of all processes")

    def expect_nothing(self) -> None:
        """Wait until neither processes nor files are left."""
        self.expect_no_processes()
        folders = {name: node.run("ls", PRIVATE) for name, node in self._network.nodes.items()}
        assert set(folders.values()) == {""}, folders
