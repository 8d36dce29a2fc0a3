"""Programs without Ray: on every node, relaunched together. Real processes, no Ray anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import THREE_NODES, RunningJob
from tests.processes import command_lines
from tests.waiting import wait_until

Start = Callable[..., RunningJob]

PER_NODE = (*THREE_NODES, "--resilient", "--per-node")

# Counts in State on every node, forever; the second launch prints its nodes and ends.
COUNT_FOR_EVER = """
    import os, time
    from laggard.kvstore import State
    from laggard.resilience import Job

    job, state = Job.current(), State.current()
    rank = int(os.environ["NODE_RANK"])
    me = job.nodes[rank]
    assert (me.hostname, str(len(job.nodes))) == (os.environ["LAGGARD_NODE"], os.environ["NNODES"])
    assert job.primary.address == os.environ["MASTER_ADDR"]
    print("launch", job.launch, "rank", rank, "of", len(job.nodes), "on", me.hostname)
    if job.restarted:
        print("counted", state["n0"] > 0 and state["n1"] > 0)
        raise SystemExit(0)
    while True:
        state[f"n{rank}"] = state.get(f"n{rank}", 0) + 1
        if state[f"n{rank}"] == 5:
            print("counting")
        time.sleep(0.01)
"""


def assert_nothing_is_left(job: RunningJob) -> None:
    assert command_lines(job.processes()) == []


def counting(start_job: Start, *options: str) -> RunningJob:
    job = start_job(*PER_NODE, *options, program=COUNT_FOR_EVER)
    for node in ("node1", "node2"):
        job.wait_for(rf"\[{node}\] counting")
    return job


def test_a_copy_runs_on_every_active_node_with_its_rank_and_without_ray(start_job: Start) -> None:
    job = counting(start_job)
    assert "[node1] launch 0 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 0 rank 1 of 2 on node2\n" in job.output
    assert not any("ray" in process.name() for process in job.processes())
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.everything()
    assert_nothing_is_left(job)


def test_a_lost_node_is_replaced_and_the_ranks_are_relaunched_together(start_job: Start) -> None:
    job = counting(start_job)
    rank = job.process_of("node2", "program.py")
    agent = rank.parent()
    assert agent is not None
    agent.kill()
    assert job.finish() == 0, job.everything()
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node3] launch 1 rank 1 of 2 on node3\n" in job.output
    assert job.output.count("counted True") == 2
    assert "without node2; node3 comes in from the reserve" in job.account
    assert_nothing_is_left(job)


def test_a_lost_agent_of_the_primary_is_replaced(start_job: Start) -> None:
    job = counting(start_job)
    agent = job.process_of("node1", "program.py").parent()
    assert agent is not None
    agent.kill()
    assert job.finish() == 0, job.everything()
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 1 rank 1 of 2 on node2\n" in job.output
    assert_nothing_is_left(job)


def test_a_copy_killed_by_a_signal_causes_a_relaunch_of_all_on_the_same_nodes(start_job: Start) -> None:
    job = counting(start_job)
    job.process_of("node2", "program.py").kill()
    assert job.finish() == 0, job.everything()
    assert re.search("the program on node2 was killed by SIGKILL after .*; strike 1 for node2", job.account)
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 1 rank 1 of 2 on node2\n" in job.output
    assert_nothing_is_left(job)


def test_the_first_failure_wins_and_the_others_get_their_grace(start_job: Start, tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from laggard.kvstore import State

        if os.environ["NODE_RANK"] == "1":
            open("ready").readline()
            sys.exit(7)

        def save(*_):
            State.current()["saved"] = True
            print("saved")
            sys.exit(5)

        signal.signal(signal.SIGTERM, save)
        open("ready", "w").close()
        signal.pause()
    """
    os.mkfifo(tmp_path / "ready")
    job = start_job(*PER_NODE, "--on-failure=end", program=program, directory=tmp_path)
    assert job.finish() == 7, job.everything()
    assert job.output == "[node1] saved\n"
    assert "the program on node2 exited with 7 after" in job.account
    assert_nothing_is_left(job)


@pytest.mark.parametrize(("signum", "grace_s"), [(signal.SIGUSR1, 30), (signal.SIGTERM, 5)])
def test_a_warning_gives_the_program_its_whole_grace_and_an_order_to_end_a_part(
    start_job: Start, signum: signal.Signals, grace_s: int
) -> None:
    job = counting(start_job, "--grace=30")
    job.process.send_signal(signum)
    assert job.finish() == 128 + signum, job.everything()
    assert f"stopped by {signum.name}: ending everything" in job.account
    assert f"s into its {grace_s} s grace period" in job.account
    assert_nothing_is_left(job)


def test_a_killed_controller_leaves_no_copy_running(start_job: Start) -> None:
    job = counting(start_job)
    job.process.kill()
    wait_until(lambda: not job.processes(), lambda: str(command_lines(job.processes())))


def test_a_detector_in_a_program_without_ray_is_pointed_to_the_detect_option(start_job: Start) -> None:
    program = """
        from laggard.detectors import SlowGPUDetector

        with SlowGPUDetector():
            pass
    """
    job = start_job("--local-nodes=1", "--virtual-gpus=2", "--per-node", program=program)
    assert job.finish() == 1, job.everything()
    assert "this job has no Ray: with --per-node, use --detect in place of a detector in the program" in job.account


def test_a_node_that_always_kills_its_copy_is_left_out_at_the_second_failure(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks fail within moments of each other, and the others say what they noticed."""
    program = """
        import os, signal, sys

        node, rank = os.environ["LAGGARD_NODE"], os.environ["NODE_RANK"]
        noticed = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.3]:43439"
        if node == "node2":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if os.environ["LAGGARD_LAUNCH"] in "01":
            sys.exit(noticed)
    """
    monkeypatch.setenv("LAGGARD_REPORT", "1")
    job = start_job(*PER_NODE, "--report-dir=reports", program=program, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    failure = (
        r"the program on node2 exited with 1 after [\d.]+ s: RuntimeError: CUDA error: uncorrectable ECC error "
        r"encountered \(hardware: uncorrectable memory error of a GPU\)"
    )
    assert re.search(f"{failure}; strike 1 for node2; on the same nodes", job.account), job.everything()
    assert re.search(f"{failure}; strike 2 for node2; without node2; node3 comes in", job.account), job.everything()
    assert "3 launches, 1 node excluded (node2)" in job.account
    (record,) = (tmp_path / "reports").iterdir()
    assert re.search(failure, (record / "report.html").read_text())
    entries = [json.loads(line) for line in (record / "job.jsonl").read_text().splitlines()]
    failures = [entry for entry in entries if entry["is"] == "FailureFound"]
    assert [(entry["failure"]["host"], entry["failure"]["kind"]) for entry in failures] == [("node2", "hardware")] * 2


@pytest.mark.root("to mount a small file system")
def test_a_node_that_is_found_bad_after_a_failure_is_left_out_at_once(start_job: Start, tmp_path: Path) -> None:
    program = """
        import os
        from pathlib import Path

        if os.environ["LAGGARD_LAUNCH"] == "0":
            print("folder", Path(os.environ["LAGGARD_ENDPOINT_FILE"]).parent, flush=True)
            open(os.environ["NODE_RANK"]).readline()
            raise KeyError("labels")
    """
    for rank in "01":
        os.mkfifo(tmp_path / rank)
    job = start_job(*PER_NODE, "--verbose", program=program, directory=tmp_path)
    folder = job.wait_for(r"\[node2\] folder (\S+)").group(1)
    job.wait_for(r"\[node1\] folder")
    job.wait_for("from node2: .*NodeChecked")  # with what it is compared later
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "laggard-test", folder], check=True)
    try:
        for rank in "01":
            (tmp_path / rank).write_text("go on\n")
        job.wait_for("without node2; node3 comes in from the reserve")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    assert job.finish() == 0, job.everything()
    assert re.search(rf"KeyError: 'labels'.*; node2: the disk of {folder} is full; without node2", job.account)
    assert "2 launches, 1 node excluded (node2)" in job.account


def test_a_bug_that_comes_again_after_steps_that_were_done_before_ends_the_job(start_job: Start) -> None:
    program = """
        from laggard import Job

        job = Job.current()
        job.progress(10 if job.restarted else 11)  # as from a checkpoint of step 10
        {}["labels"]
    """
    job = start_job("--local-nodes=1", "--resilient", "--per-node", program=program)
    assert job.finish() == 1, job.everything()
    job.wait_for("KeyError: 'labels' .* the same as the last time, without progress in between")
    assert "2 launches" in job.account
