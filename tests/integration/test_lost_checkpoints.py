"""What a job says and does about a checkpoint that was only in the memory of the nodes of the last one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

PROGRAM = """
    import os, signal
    import numpy as np
    from laggard import Checkpointer, State

    checkpoints = Checkpointer(State.current())
    print("begins from", checkpoints.latest(), flush=True)
    if checkpoints.latest() is None:
        checkpoints.save(1, {"weights": np.zeros(10)})
        checkpoints.save(2, {"weights": np.zeros(300_000)})
        print("counts:", checkpoints.latest() == 2 or checkpoints.wait(2), flush=True)
        signal.pause()
"""
OPTIONS = ("--local-nodes=2", "--nodes=1", "--per-node", "--state-dir=state")


def test_a_checkpoint_that_ended_with_the_last_job_is_named_and_the_one_before_is_offered(
    tmp_path: Path, start_job: Callable[..., RunningJob]
) -> None:
    first = start_job(*OPTIONS, program=PROGRAM, directory=tmp_path)
    first.wait_for("begins from None")
    first.wait_for("counts: True")
    first.process.send_signal(signal.SIGKILL)
    wait_until(lambda: not first.processes(), first.everything)
    second = start_job(*OPTIONS, program=PROGRAM, directory=tmp_path)
    assert second.finish() == 0, second.everything()
    assert "begins from 1" in second.output
    assert (
        "the newest checkpoint, of step 2, was only in the memory of nodes and is lost: "
        "the newest that is left is that of step 1" in second.account
    )
