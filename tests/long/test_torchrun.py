"""The torchrun example: a real data-parallel job loses a node, and its result is as if nothing had happened."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.printed import TORCHRUN_JOB, WATCHED_JOB

pytest.importorskip("torch", reason="needs the extra `torch`")

Start = Callable[..., RunningJob]

EXAMPLES = Path(__file__).parents[2] / "examples"


def losses(output: str) -> list[str]:
    """Return the loss of each step; a step that was repeated must have the same loss again."""
    lines = dict.fromkeys(re.findall(r"\[node1\] (step \d+: loss .*|final loss .*)\n", output))
    assert len({line.split(":")[0] for line in lines}) == len(lines), output
    return list(lines)


def test_after_a_lost_node_the_loss_curve_is_that_of_an_undisturbed_run(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples' README prints this command, word for word."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(TORCHRUN_JOB)
    job = start_job(*arguments, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    resumed = job.wait_for(r"launch 1: 2 ranks on node1, node3, from step (\d+) of 60")
    assert int(resumed.group(1)) >= 20
    assert job.processes() == []

    # the same two ranks on one node, to which nothing happens
    example = str(EXAMPLES / "torchrun_ddp.py")
    undisturbed = start_job("--per-node", "torchrun", "--nproc-per-node=2", example, "--steps=60", "--step-time=0.02")
    assert undisturbed.finish() == 0, undisturbed.everything()
    assert losses(job.output) == losses(undisturbed.output)
    assert len(losses(job.output)) == 7


def test_a_watched_torchrun_has_a_worker_on_each_processor_of_its_nodes(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the guide, on nodes of this machine, with the example as the program."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    short = [str(EXAMPLES / "torchrun_ddp.py"), "--steps=40", "--step-time=0.01"]
    program = f"import runpy, sys; sys.argv = {short!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    _, *arguments = shlex.split(WATCHED_JOB)
    (tmp_path / arguments.pop()).write_text(program)
    job = start_job("--local-nodes=3", "--virtual-gpus=1", *arguments, "train.py", directory=tmp_path)
    assert job.finish() == 0, job.everything()
    workers = 2 * len(os.sched_getaffinity(0))
    job.wait_for(rf"launch 0: {workers} ranks on node1, node2, from step 0 of 40")
    assert "reserve: node3" in job.account
    assert len(losses(job.output)) == 5
