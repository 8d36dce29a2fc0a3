"""Nodes that are away for a while, in whole jobs."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from laggard.kvstore.control import Control
from laggard.kvstore.server.process import StateServer
from laggard.resilience.controller.records import Records
from tests.integration.jobs import THREE_NODES, RunningJob
from tests.integration.test_returning import Start
from tests.processes import command_line, command_lines, seen_of
from tests.waiting import Gate


def agents(job: RunningJob) -> dict[str, psutil.Process]:
    """Return the agents of the nodes, found by the private folder that each has open."""
    found = {}
    for process in job.processes():
        if "laggard.resilience.agent.agent" not in command_line(process):
            continue
        opened = [file.path for files in seen_of([process], psutil.Process.open_files) for file in files]
        for path in opened:
            if match := re.search(r"/(\d+)/agent\.log$", path):
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
    assert not [line for line in command_lines(job.processes()) if "sleep 1234" in line]  # nothing of the old launch
    job.wait_for(r"returned +node[23] is back")
    end.open()
    assert job.finish() == 0, job.everything()
    assert re.search(r"launch 1 on node1 node[23]", job.output)
    assert "0 nodes excluded" in job.account
    assert command_lines(job.processes()) == []


def test_an_excluded_node_is_probed_and_comes_back_when_its_quarantine_is_over(
    start_job: Start, tmp_path: Path
) -> None:
    program = """
        import os, signal
        from laggard.resilience import Job
        from laggard.telemetry import AnalysisClient

        if Job.current().restarted:
            if os.environ["NODE_RANK"] == "0":
                open("end").readline()
            raise SystemExit(0)
        if os.environ["NODE_RANK"] == "0":
            client = AnalysisClient()
            client.connect()
            client.reboot("node2")
        signal.pause()
    """
    end = Gate(tmp_path / "end")
    options = (*THREE_NODES, "--resilient", "--per-node", "--quarantine=1", "--state-dir=state")
    job = start_job(*options, program=program, directory=tmp_path)
    job.wait_for("without node2; node3 comes in from the reserve")
    job.wait_for("returned +node2 is back: it is in the reserve")
    end.open()
    assert job.finish() == 0, job.everything()
    with StateServer.start(tmp_path / "state", job="program") as server:
        records = Records(server.endpoint)
        (exclusion,) = records.read_exclusions()
        with server.endpoint.connect() as client:
            control = Control(client, server.endpoint, 1)
            assert control.read_launch().reserve == ()
            assert control.read_reserve() == 1  # so a detector knows that it may ask for a relaunch again
    assert (exclusion.host, exclusion.lost, exclusion.count) == ("node2", False, 1)


# Counts in State on every node, forever; a later launch says what it has found, and ends when the test says so.
COUNT = """
    import os, subprocess, time
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
    subprocess.Popen(["sleep", "1234"], start_new_session=True)
    while True:
        state[f"n{rank}"] = state.get(f"n{rank}", 0) + 1
        if state[f"n{rank}"] == 5:
            print("counting", flush=True)
        time.sleep(0.01)
"""
