"""Nodes that were lost come back: real jobs, real agents, a real state server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.integration.jobs import THREE_NODES, RunningJob
from tests.waiting import Gate

Start = Callable[..., RunningJob]

# Counts in State on every node, forever; a later launch says what it has found, and ends when the test says so.
COUNT = """
    import os, time
    from laggard.kvstore import State
    from laggard.resilience import Job

    job, state = Job.current(), State.current()
    rank = int(os.environ["NODE_RANK"])
    print("launch", job.launch, "on", *(node.hostname for node in job.nodes), flush=True)
    if job.restarted:
        print("counted", state.get(f"n{rank}", 0) > 0, flush=True)
        if rank == 0:
            open("end").readline()
        raise SystemExit(0)
    while True:
        state[f"n{rank}"] = state.get(f"n{rank}", 0) + 1
        if state[f"n{rank}"] == 5:
            print("counting", flush=True)
        time.sleep(0.01)
"""


def agents(job: RunningJob) -> dict[str, psutil.Process]:
    """Return the agents of the nodes, found by the private folder that each has open."""
    found = {}
    for process in job.processes():
        if "laggard.resilience.agent.agent" not in process.cmdline():
            continue
        for file in process.open_files():
            if match := re.search(r"/(\d+)/agent\.log$", file.path):
                found[f"node{match[1]}"] = process
    return found


def test_two_nodes_that_are_silent_do_not_end_a_job_with_one_spare(start_job: Start, tmp_path: Path) -> None:
    end = Gate(tmp_path / "end")
    job = start_job(*THREE_NODES, "--resilient", "--per-node", program=COUNT, directory=tmp_path)
    for node in ("node1", "node2"):
        job.wait_for(rf"\[{node}\] counting")
    before = agents(job)
    for node in ("node2", "node3"):
        before[node].suspend()
    job.wait_for(r"waits .*waiting up to 5 min 0 s for node[23](, node[23])? to return")
    job.wait_for(r"\[node1\] counted True")
    job.wait_for(r"returned +node[23] is back")
    end.open()
    assert job.finish() == 0, job.everything()
    assert re.search(r"launch 1 on node1 node[23]", job.output)
    assert "0 nodes excluded" in job.account
    assert [process.cmdline() for process in job.processes()] == []
