"""A slow primary of a Ray job, whose head goes on without resources; and one of two nodes, down to it alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import psutil
import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, THREE_NODES, RunningJob
from tests.integration.test_head_only import ACCUSES
from tests.waiting import wait_until

Start = Callable[..., RunningJob]


@pytest.mark.parametrize(
    ("options", "instead", "devices"),
    [
        (["--local-nodes=3", "--nodes=2"], "node3 comes in from the reserve", 2),
        (["--local-nodes=2", "--exhaust-resources"], "node2 goes on alone", 1),
    ],
    ids=["with a reserve", "of two nodes"],
)
def test_rays_head_goes_on_without_resources(
    start_job: Start, options: Sequence[str], instead: str, devices: int
) -> None:
    program = """
        import os, ray, signal
        from laggard import AnalysisClient, Job

        job = Job.current()
        ray.init()

        @ray.remote(num_gpus=1)
        def where():
            return os.environ["LAGGARD_NODE"]

        n_devices = sum(len(node.devices) for node in job.nodes)
        assert ray.cluster_resources()["GPU"] == n_devices
        places = {place for place in ray.get([where.remote() for _ in range(8)])}
        assert places <= {node.hostname for node in job.nodes}
        print("launch", job.launch, "of", job.primary.hostname, "with", n_devices, "devices", flush=True)
        if not job.restarted:
            client = AnalysisClient()
            client.connect()
            client.reboot(job.primary.hostname)
            signal.pause()
    """
    job = start_job(*options, "--virtual-gpus=1", "--resilient", program=program)
    job.wait_for("launch 0 of node1 with 2 devices")
    job.wait_for(rf"without the devices of node1 \(the primary\); {instead}")
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert f"launch 1 of node1 with {devices} devices" in job.output
    assert "(primary: node1, without its devices)" in job.account
    assert job.processes() == []


def roles(job: RunningJob) -> dict[str, str]:
    command = [sys.executable, "-P", "-m", "laggard", "status", "--json"]
    environment = psutil.Process(job.process.pid).environ()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    return {node["host"]: node["role"] for node in json.loads(answer.stdout)["nodes"]}


def test_a_job_of_two_nodes_goes_on_without_its_primary_and_down_to_it_alone(start_job: Start) -> None:
    options = ("--local-nodes=2", "--virtual-gpus=1", "--resilient", "--exhaust-resources", "--telemetry-level=2")
    watched = ("--detect=slow-gpu", "--detect-interval=0.5", "--restart-cost=1000000", "--hang-timeout=600")
    job = start_job(*options, *watched, "--per-node", program=ACCUSES)
    job.wait_for(r"without the devices of node1 \(the primary\); node2 goes on alone")
    job.wait_for(r"\[node2\] launch 1 rank 0 on node2 of \['node2'\]")
    expected = {"node1": "head-only", "node2": "in use"}
    wait_until(lambda: roles(job) == expected, lambda: str(roles(job)))
    # On the primary the readings are judged, and nothing is probed.
    assert job.process_of("node1", "laggard.resilience.agent.detect").is_running()
    (job.directory / "go").touch()
    assert job.finish() == 0, job.everything()
    change = "without node2; the devices of node1 (the primary) are used again; node1 goes on alone"
    assert change in job.account
    assert "[node1] launch 2 rank 0 on node1 of ['node1']\n" in job.output
    assert job.processes() == []


def test_a_reserve_node_takes_the_place_of_a_slow_primary_which_comes_back_when_it_is_well(start_job: Start) -> None:
    job = start_job(*THREE_NODES, "--resilient", "--per-device", "--virtual-gpus=1", "--quarantine=1", program=ACCUSES)
    job.wait_for(r"without the devices of node1 \(the primary\); node3 comes in from the reserve")
    job.wait_for(r"launch +1 on node2, node3 \(primary: node1, without its devices\)")
    job.wait_for(r"\[node2 rank 0\] launch 1 rank 0 on node2 of \['node2', 'node3'\]")
    job.wait_for(r"\[node3 rank 1\] primary node1 with 0 devices")
    job.wait_for("node1 is back: it is in the reserve")
    (job.directory / "go").touch()
    assert job.finish() == 0, job.everything()
    assert "without node3; node1 comes in from the reserve" in job.account
    assert "[node1 rank 0] launch 2 rank 0 on node1 of ['node1', 'node2']\n" in job.output
    assert "[node2 rank 1] primary node1 with 1 devices\n" in job.output
    assert job.processes() == []
