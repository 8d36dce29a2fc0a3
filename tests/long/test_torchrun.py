"""The torchrun example: a real data-parallel job loses a node, and its result is as if nothing had happened."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.collectors.device_timers import find_device_timer
from tests.integration.jobs import RunningJob
from tests.printed import SECTIONS_JOB, TORCHRUN_JOB, WATCHED_JOB
from tests.unit.test_device_timers import torch_on

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


# One of four ranks becomes 30 % slower in its own work; in the collective all others wait for it.
SLOW_FORWARD = """
import os, sys, time
from pathlib import Path

import torch
import torch.distributed as dist

import laggard

if os.environ["LAGGARD_LAUNCH"] == "1":
    sys.exit(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model, rank = torch.nn.Linear(64, 64), dist.get_rank()
for step in range(100_000):
    begun_s = time.monotonic()
    is_slow = rank == 3 and step > 250
    with laggard.section("step"):
        with laggard.section("forward"):
            loss = model(torch.randn(8, 64)).square().mean()
            time.sleep(0.026 if is_slow else 0.02)
        loss.backward()
        with laggard.section("all_reduce", waits=True):
            dist.all_reduce(model.weight.grad)
    if step % 100 == 0:
        print(f"step {step} of rank {rank}: {1e3 * (time.monotonic() - begun_s):.0f} ms", flush=True)
"""


def test_of_ranks_that_all_wait_for_the_slowest_the_slow_one_is_named_and_none_other(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the guide, on nodes of this machine."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    _, *arguments = shlex.split(SECTIONS_JOB)
    (tmp_path / arguments[-1]).write_text(SLOW_FORWARD)
    options = ("--local-nodes=3", "--detect-interval=0.3", "--restart-cost=0")
    job = start_job(*options, *arguments, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    job.wait_for(r"verdict +rank 3 on node2: \d\d(\.\d)? % slower than .*, in the section (forward|step),.* \(slow\)")
    assert "without node2; node3 comes in from the reserve" in job.account
    assert re.findall(r"rank [0-2] on .* \((?:very )?slow\)", job.account) == []
    assert job.processes() == []


def test_pytorch_has_what_the_timer_of_sections_uses() -> None:
    import torch

    for name in vars(torch_on(None).cuda):
        assert callable(getattr(torch.cuda, name))
    for name in ("record", "query", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    if not torch.cuda.is_available():
        assert find_device_timer() is None
