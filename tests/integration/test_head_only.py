"""A slow primary goes on as a head-only node: it holds State and the controller, and its devices are not used."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.jobs import THREE_NODES, RunningJob

Start = Callable[..., RunningJob]

# The first launch accuses the primary; the second waits for a file, then accuses its last node; the third ends.
ACCUSES = """
    import os, time
    from pathlib import Path
    from laggard import AnalysisClient, Job, State

    def accuse(host):
        client = AnalysisClient()
        client.connect()
        client.reboot(host)

    job, me = Job.current(), os.environ["LAGGARD_NODE"]
    rank = os.environ.get("RANK", os.environ.get("NODE_RANK"))
    assert os.environ["MASTER_ADDR"] == job.nodes[0].address
    State.current()[f"{job.launch}/{rank}"] = me
    print("launch", job.launch, "rank", rank, "on", me, "of", [node.hostname for node in job.nodes], flush=True)
    print("primary", job.primary.hostname, "with", len(job.primary.devices), "devices", flush=True)
    if job.launch < 2 and rank == "0":
        while job.launch == 1 and not Path("go").exists():
            time.sleep(0.1)
        accuse(job.primary.hostname if job.launch == 0 else job.nodes[-1].hostname)
    if job.launch < 2:
        time.sleep(600)
    assert len(State.current()) >= 3
"""


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


def test_a_primary_that_cannot_be_spared_is_kept_and_the_account_says_what_would_help(start_job: Start) -> None:
    job = start_job("--local-nodes=2", "--virtual-gpus=1", "--resilient", "--per-node", program=ACCUSES)
    job.wait_for("no relaunch: no other node could take the place of node1; --exhaust-resources would go on without it")
    assert "launch    1" not in job.account
