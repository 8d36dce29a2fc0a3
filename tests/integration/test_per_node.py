"""Programs without Ray: on every node, relaunched together. Real processes, no Ray anywhere."""

from __future__ import annotations

import signal
from collections.abc import Callable

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


def test_a_bug_that_comes_again_after_steps_that_were_done_before_ends_the_job(start_job: Start) -> None:
    program = """
        from laggard import Job

        job = Job.current()
        job.progress(10 if job.restarted else 11)  # as from a checkpoint of step 10
        {}["labels"]
    """
    job = start_job("--local-nodes=1", "--resilient", "--per-node", "--backoff=0", program=program)
    assert job.finish() == 1, job.everything()
    job.wait_for("KeyError: 'labels' .* 3 failures without progress, the last two at the same place")
    assert "3 launches" in job.account
