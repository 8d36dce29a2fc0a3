"""Running the real command, and looking for what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.processes import HIDDEN, command_line
from tests.waiting import DEADLINE_S, wait_until

# The main job takes half a minute, and several times as long on a busy machine.
MAIN_JOB_DEADLINE_S = 240.0
MARKER = "LAGGARD_TEST_MARKER"

# What no library may write into the output of a job that does well.
NOISE = re.compile(r"Traceback|WARNING|INFO|ERROR|raylet|mutex|SIGTERM received|core_worker", re.IGNORECASE)
# A line that goes on below itself.
GOES_ON = re.compile(r"\n {18}(?=\S)")
THREE_NODES = ("--local-nodes=3", "--nodes=2", "--virtual-gpus=2")


class RunningJob:
    """A ``laggard`` command, its output in files, every process of it marked."""

    def __init__(
        self, directory: Path, runtime_root: str, *arguments: str, command: Sequence[str] = ("-m", "laggard")
    ) -> None:
        self.directory, self.runtime_root = directory, runtime_root
        self._marker = secrets.token_hex(8)
        self._out, self._err = directory / "stdout", directory / "stderr"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *command, *arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # no terminal's, wherever the tests run
                env={
                    "LAGGARD_REPORT": "0",
                    **os.environ,
                    MARKER: self._marker,
                    "LAGGARD_RUNTIME_ROOT": runtime_root,
                },
            )

    @property
    def output(self) -> str:
        """What the program wrote."""
        return self._out.read_text()

    @property
    def account(self) -> str:
        """What laggard wrote, with line breaks within its lines undone."""
        return GOES_ON.sub(" ", self._err.read_text())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the output or the account matches."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, self.output) or re.search(pattern, self.account)
            found.extend([match] if match else [])
            assert match or self.process.poll() is None, f"the job ended before {pattern!r}:\n{self.everything()}"
            return bool(match)

        wait_until(look, lambda: f"no {pattern!r} in time:\n{self.everything()}")
        return found[0]

    def finish(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end in time:\n{self.everything()}") from None

    def everything(self) -> str:
        """Output and account, to explain a failure."""
        return f"--- output\n{self.output}\n--- account\n{self.account}"

    def processes(self) -> list[psutil.Process]:
        """Return all live processes that this job has started, directly or indirectly."""
        return list(_marked(self._marker))

    def process_of(self, node: str, command: str) -> psutil.Process:
        """Return the process of a node whose command line contains a text."""
        for process in self.processes_of(node):
            if command in command_line(process):
                return process
        raise AssertionError(f"no {command} on {node}")

    def processes_of(self, node: str) -> Iterator[psutil.Process]:
        """Yield what the agent of an active node has started, directly or indirectly, but for what it keeps warm."""
        for process in self.processes():
            with contextlib.suppress(*HIDDEN):
                if process.environ().get("LAGGARD_NODE") == node and not is_warm(process):
                    yield process

    def agent_of(self, node: str) -> psutil.Process:
        """Return the agent of an active node."""
        parent = self.process_of(node, "laggard.resilience.ray.node").parent()
        assert parent is not None
        return parent

    def state_server(self) -> psutil.Process:
        """Return the state server's process: a child of the command's own, not of a node's agent."""
        for process in psutil.Process(self.process.pid).children():
            if "valkey-server" in command_line(process).partition(" ")[0]:
                return process
        raise AssertionError("no state server")

    def end(self) -> None:
        """End everything, for the fixture."""
        self.process.send_signal(signal.SIGKILL) if self.process.poll() is None else None
        self.process.wait(DEADLINE_S)
        for process in self.processes():
            with contextlib.suppress(*HIDDEN):
                process.kill()


def is_warm(process: psutil.Process) -> bool:
    """Whether a process is kept warm, or forked from one that is and still without a rank."""
    return "LAGGARD_WARM" in process.environ()


def _marked(marker: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(*HIDDEN):
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def ask(port: int, path: str, body: object = None) -> Any:
    """Ask a job's telemetry server."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=10) as answer:
        return json.load(answer)


def metrics_of(port: int) -> set[str]:
    """Return the names of all metrics; none while the server is down."""
    try:
        return set(ask(port, "/api/suggest?type=metrics&max=1000"))
    except OSError:
        return set()
