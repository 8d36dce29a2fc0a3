"""The torchrun example: a real data-parallel job loses a node and ends as if nothing had happened."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob

pytest.importorskip("torch", reason="needs the extra `torch`")

Start = Callable[..., RunningJob]

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
EXAMPLE = (str(Path(__file__).parents[2] / "examples" / "torchrun_ddp.py"), "--steps=60", "--step-time=0.02")


def losses(output: str) -> list[str]:
    """Return the losses, each step's once: a step that was done again must have come to the same."""
    told = dict.fromkeys(re.findall(r"\[node1\] (step \d+: loss .*|final loss .*)\n", output))
    assert len({line.split(":")[0] for line in told}) == len(told), output
    return list(told)


def test_after_a_lost_node_the_loss_curve_is_that_of_an_undisturbed_run(start_job: Start) -> None:
    job = start_job("--local-nodes=3", "--nodes=2", "--resilient", "--per-node", TORCHRUN, *EXAMPLE)
    job.wait_for(r"step 20: loss")
    agent = job.process_of("node2", "torchrun").parent()
    assert agent is not None
    agent.kill()
    assert job.finish() == 0, job.everything()
    resumed = job.wait_for(r"launch 1: 2 ranks on node1, node3, from step (\d+) of 60")
    assert int(resumed.group(1)) >= 20
    assert job.processes() == []

    # the same two ranks on one node, to which nothing happens
    undisturbed = start_job("--per-node", TORCHRUN, "--nproc-per-node=2", *EXAMPLE)
    assert undisturbed.finish() == 0, undisturbed.everything()
    assert losses(job.output) == losses(undisturbed.output)
    assert len(losses(job.output)) == 7
