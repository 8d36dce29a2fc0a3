"""A job on one node for the benchmarks of telemetry: its state server, its node's process and its HTTP server."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE, TELEMETRY_LEVEL, JobEnvironment
from laggard.kvstore.server.process import StateServer
from laggard.telemetry.nodes.bus import NodeAsker

__all__ = ["DEADLINE_S", "Job", "cpu_s", "post", "running_job", "started", "wait_for"]

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Job:
    """A job on one node, with its agent and its server."""

    session: Session
    variables: dict[str, str]
    agent: psutil.Process
    server: psutil.Process
    state_server: psutil.Process
    port: int

    @property
    def processes(self) -> list[psutil.Process]:
        """All processes that take part in a query."""
        return [self.server, self.agent, self.state_server]

    def run(self, source: str, *arguments: object) -> list[float]:
        """Run a program in the job; return the numbers that it prints."""
        done = subprocess.run(
            [sys.executable, "-c", source, *map(str, arguments)],
            env=self.variables,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return [float(word) for word in done.stdout.split()]

    def newest(self, metric: str) -> dict[str, tuple[float, float]]:
        """Return time and value of the newest sample of each series of a metric, by its tag ``run``."""
        found = NodeAsker(self.session.client, self.session.endpoint).ask({"kind": "newest"}).by_host["node1"]
        series = [each for each in found if each["metric"] == metric]
        return {each["tags"].get("run", ""): (each["time_us"] / 1e6, each["value"]) for each in series}

    def samples(self) -> int:
        """Return the number of samples on the node."""
        return int(self.newest("telemetry_samples").get("", (0, 0))[1])


@contextlib.contextmanager
def running_job(directory: Path) -> Iterator[Job]:
    """Run a job on one virtual node with eight devices, at telemetry level 4, during the ``with`` block."""
    variables = {ENDPOINT_FILE: str(directory / "endpoint.json"), LAUNCH: "0", NODE: "node1", TELEMETRY_LEVEL: "4"}
    variables |= {"LAGGARD_VIRTUAL_DEVICES": "8", "LAGGARD_VIRTUAL_DEVICE_DIR": str(directory)}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(StateServer.start(directory / "state", job="benchmark"))
        server.endpoint.save(directory / "endpoint.json")
        agent = stack.enter_context(started([sys.executable, "-m", "laggard.collectors.metrics.process"], variables))
        asker = NodeAsker(server.endpoint.connect(), server.endpoint)
        wait_for(lambda: asker.hosts() == ["node1"])
        http_server = stack.enter_context(
            started([sys.executable, "-m", "laggard.telemetry.server", "--port", "0"], variables)
        )
        assert http_server.stdout is not None  # noqa: S101
        port = int(http_server.stdout.readline().rsplit(b":", 1)[1])
        session = Session(JobEnvironment.current(variables), server.endpoint, server.endpoint.connect())
        agent_process, server_process, state_server = map(psutil.Process, (agent.pid, http_server.pid, server.pid))
        yield Job(session, variables, agent_process, server_process, state_server, port)


@contextlib.contextmanager
def started(command: Sequence[str], variables: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process during the ``with`` block."""
    process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def post(port: int, body: bytes) -> bytes:
    """Return the answer to a query."""
    connection = http.client.HTTPConnection("localhost", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("POST", "/api/query", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()


def wait_for(done: Callable[[], object]) -> None:
    """Wait until something holds.

    Raises
    ------
    TimeoutError
        If it does not in a minute.
    """
    until_s = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError("timed out waiting for a process of the benchmark")
        threading.Event().wait(0.05)


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used."""
    used = process.cpu_times()
    return used.user + used.system
