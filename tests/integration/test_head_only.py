"""A slow primary goes on as a head-only node: it holds State and the controller, and its devices are not used."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.jobs import RunningJob

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


def test_a_primary_that_cannot_be_spared_is_kept_and_the_account_says_what_would_help(start_job: Start) -> None:
    job = start_job("--local-nodes=2", "--virtual-gpus=1", "--resilient", "--per-node", program=ACCUSES)
    job.wait_for(
        "no relaunch: no other node could take the place of node1; "
        "with --exhaust-resources the job would go on without it"
    )
    assert "launch    1" not in job.account
