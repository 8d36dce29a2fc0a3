"""A job that is in the middle of its work when a test does something to it, and what a test does to it."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.integration.jobs import THREE_NODES, RunningJob
from tests.processes import command_lines

Start = Callable[..., RunningJob]

RESILIENT = (*THREE_NODES, "--resilient")

# Counts in State in workers on both devices of the last node, forever: what a test ends is in the middle of its work.
COUNT_FOR_EVER = """
    import ray
    from laggard.collectors.ray_actors import node_strategy
    from laggard.kvstore import State
    from laggard.resilience import Job

    job = Job.current()
    state = State.current()
    print(f"launch {job.launch} on {' '.join(node.hostname for node in job.nodes)}", flush=True)
    if job.restarted:
        print("counted", "yes" if state["n0"] > 0 else "no", "restarted", job.restarted, flush=True)
        raise SystemExit(0)
    ray.init()

    @ray.remote(num_gpus=1)
    def count(key):
        state = State.current()
        while True:
            with state.transaction() as transaction:
                transaction[key] = transaction.get(key, 0) + 1

    running = [count.options(scheduling_strategy=node_strategy(job.nodes[-1])).remote(f"n{i}") for i in range(2)]
    while "n0" not in state:
        ray.wait(running, timeout=0.1)
    print("counting", flush=True)
    ray.get(running)
"""


def assert_nothing_is_left(job: RunningJob) -> None:
    assert command_lines(job.processes()) == []


def lose_node2(start_job: Start, lose: Callable[[RunningJob], None]) -> None:
    """Start the job, lose node2 in some way, and check that it goes on with node3."""
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    lose(job)
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node3" in job.output
    assert "counted yes" in job.output
    assert_nothing_is_left(job)


def end_by_signal(start_job: Start, signum: signal.Signals) -> RunningJob:
    """Start the job, send the controller a signal, check that everything ends, and return the job that was."""
    job = start_job(*RESILIENT, "--state-dir=state", program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.process.send_signal(signum)
    assert job.finish() == 128 + signum, job.everything()
    assert_nothing_is_left(job)
    return job
