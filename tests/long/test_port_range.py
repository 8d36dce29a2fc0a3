"""A job with ``--port-range`` listens at ports of the range only, whatever it uses."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil
import pytest

from laggard.system.ports import VARIABLE, PortRange
from tests.integration.jobs import RunningJob
from tests.processes import seen_of
from tests.waiting import wait_until

Start = Callable[..., RunningJob]

PORTS = PortRange(60900, 60999)
WORKERS = """
    import signal

    import ray

    ray.init()

    @ray.remote(num_gpus=1)
    def work():
        signal.pause()

    running = [work.remote() for _ in range(2)]
    print("working", flush=True)
    ray.get(running)
"""
RANK = """
    import os, signal, socket

    from laggard.kvstore import Checkpointer, State

    checkpoints = Checkpointer(State.current())
    if os.environ["NODE_RANK"] == "0":
        rendezvous = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    print("working", flush=True)
    signal.pause()
"""


def listening(job: RunningJob) -> dict[int, str]:
    """Return at which ports the job listens, and the program of each."""
    command = psutil.Process(job.process.pid)
    all_of_it = [command, *command.children(recursive=True)]
    seen = seen_of(all_of_it, lambda each: (each.name(), each.net_connections("tcp")))
    return {
        each.laddr.port: name for name, connections in seen for each in connections if each.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize(
    ("kinds", "program", "options"),
    [
        # Valkey, the telemetry server, Ray's head, and of each node its raylet, its environments, and a worker
        (11, WORKERS, ("--telemetry-level=4",)),
        # Valkey, the rendezvous, and the links and shards of each node
        (6, RANK, ("--per-node", "--detect=slow-link", "--detect-interval=1")),
    ],
    ids=["ray", "per-node"],
)
def test_a_job_listens_within_its_range(start_job: Start, kinds: int, program: str, options: tuple[str, ...]) -> None:
    job = start_job(
        "--local-nodes=2", "--virtual-gpus=1", f"--port-range={PORTS}", "--no-report", *options, program=program
    )
    job.wait_for("working")
    wait_until(lambda: len(listening(job)) >= kinds, lambda: f"{listening(job)}\n{job.everything()}")
    assert {port: name for port, name in listening(job).items() if port not in PORTS.ports} == {}


def test_a_range_that_is_too_small_is_named(start_job: Start) -> None:
    job = start_job("--port-range=60900-60900", "--per-node", "true")
    assert job.finish() == 1, job.everything()
    assert "no port of --port-range=60900-60900 is free at " in job.account


def test_a_range_that_is_none_is_a_usage_error_also_in_the_environment(
    start_job: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "60900")
    job = start_job("--per-node", "true")
    assert job.finish() == 2, job.everything()
    assert "laggard: --port-range=60900 is not a range of ports" in job.account
