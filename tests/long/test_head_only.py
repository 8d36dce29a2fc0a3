"""A Ray job whose primary is slow: Ray's head goes on without resources, and the program's tasks run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob

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
