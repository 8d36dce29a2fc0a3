"""A checkpoint with which no launch gets on: the job goes on from the one before it. The real command."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.jobs import RunningJob

PROGRAM = """
    import math
    import numpy as np
    from laggard import Checkpointer, Job, State

    job = Job.current()
    checkpoints = Checkpointer(State.current(), keep=3)
    step = checkpoints.latest()
    weights = np.zeros(SIZE) if step is None else checkpoints.restore(step)
    step = step or 0
    print("launch", job.launch, "goes on from", step, flush=True)
    while step < 6:
        if not np.isfinite(weights).all():
            raise FloatingPointError("the loss is not finite")
        step, weights = step + 1, weights + 1
        job.progress(step)
        poison = job.launch == 0 and step == 4
        checkpoints.save(step, weights * math.nan if poison else weights)
        checkpoints.wait(step)
        if poison:
            raise RuntimeError("odd")
    print("done with", weights.mean())
"""


@pytest.mark.parametrize("size", [10, 1 << 18], ids=["in State", "in memory"])
def test_a_poisoned_checkpoint_is_set_aside(start_job: Callable[..., RunningJob], size: int) -> None:
    options = ("--local-nodes=1", "--resilient", "--per-node", "--backoff=0", "--telemetry-level=0")
    job = start_job(*options, program=PROGRAM.replace("SIZE", str(size)))
    assert job.finish() == 0, job.everything()
    assert "goes on from 4" in job.output
    assert "one checkpoint back, in case the newest is at fault" in job.account
    assert "checkpoint of step 4 is set aside: the next launch goes on from step 3" in job.account
    assert "goes on from 3\n" in job.output
    assert "done with 6.0" in job.output


def test_what_fails_from_the_checkpoint_before_it_too_ends_the_job_and_says_so(
    start_job: Callable[..., RunningJob],
) -> None:
    program = """
        from laggard import Checkpointer, Job, State

        job = Job.current()
        checkpoints = Checkpointer(State.current(), keep=3)
        if (step := checkpoints.latest()) is not None:
            job.progress(step)
            raise KeyError("what the program lacks")
        for step in (3, 4):
            job.progress(step)
            checkpoints.save(step, step)
        raise RuntimeError("odd")
    """
    options = ("--local-nodes=1", "--resilient", "--per-node", "--backoff=0", "--telemetry-level=0")
    job = start_job(*options, program=program)
    assert job.finish() == 1, job.everything()
    says = "it fails from the checkpoint of step 4 and from the one before it, of step 3: change the program"
    assert says in job.account
