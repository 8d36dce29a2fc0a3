"""Trainings whose ranks hold different values, killed three times: each rank gets its own back, or a refusal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.long.test_resume import TORCHRUN, run

pytest.importorskip("torch", reason="needs the extra `torch`")

PROGRAM = """
import os
import signal
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import laggard.torch

kind, kills, steps = sys.argv[1], [int(step) for step in sys.argv[2:]], 14
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
generator = torch.Generator().manual_seed(rank)


class Drawn:  # what each rank has drawn with a generator of its own
    total = torch.zeros(300_000)

    def state_dict(self):
        return {"total": self.total, "generator": generator.get_state(), "ranks": "all"}

    def load_state_dict(self, state):
        self.total = state["total"]
        generator.set_state(state["generator"])


class Pipeline(torch.nn.Module):  # one stage on each rank, with the same names
    def __init__(self):
        super().__init__()
        torch.manual_seed(rank)
        self.layer = torch.nn.Linear(8, 8 if rank == 0 else 1)

    def step(self, batch):
        if rank == 0:
            sent = self.layer(batch)
            dist.send(sent.detach(), 1)
            gradient = torch.empty_like(sent)
            dist.recv(gradient, 1)
            sent.backward(gradient)
            return sent.detach().sum()
        received = torch.empty(4, 8)
        dist.recv(received, 0)
        received.requires_grad_()
        loss = self.layer(received).square().mean()
        loss.backward()
        dist.send(received.grad, 0)
        return loss


drawn = Drawn()
if kind == "pipeline":
    model = module = Pipeline()
else:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(8, 600), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 1))
    model = DistributedDataParallel(module, **({"broadcast_buffers": False} if kind == "own buffers" else {}))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
also = {"drawn": drawn} if kind in ("pipeline", "own buffers") else {}
run = laggard.torch.resume(model, optimizer, also=also, every=2)
for step in range(run.step, steps):
    torch.manual_seed(100 * step + rank)
    batch = torch.randn(4, 8)
    optimizer.zero_grad()
    if kind == "pipeline":
        loss = model.step(batch)
    else:
        loss = model(batch).square().mean()
        loss.backward()
    optimizer.step()
    drawn.total += torch.rand(1, generator=generator)
    mean = module[1].running_mean.sum().item() if kind != "pipeline" else 0.0
    total = drawn.total[-1].item() if also else 0.0
    sys.stdout.write(f"r{rank} step {step}: {loss.item():.9f} {mean:.9f} {total:.9f}\\n")
    sys.stdout.flush()
    if kind == "evaluated":  # after which a forward takes no buffers of rank 0
        with torch.no_grad():
            model(batch)
    run.save(step, loss=loss)
    if run.job.launch < len(kills) and step == kills[run.job.launch] and rank == run.job.launch % 2:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""
JOB = ("--local-nodes=1", "--virtual-gpus=2", "--resilient", "--per-device")
KILLS = ("3", "8", "11")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "training.py").write_text(PROGRAM)
    return tmp_path


def steps(output: str) -> list[str]:
    """Return the lines of steps of both ranks; one that was repeated must be the same again."""
    lines = sorted(set(re.findall(r"r\d step \d+: .*$", output, re.MULTILINE)))
    assert len({line.split(":")[0] for line in lines}) == len(lines) == 2 * 14, output
    return lines


@pytest.mark.parametrize("kind", ["pipeline", "own buffers", "buffers of rank 0", "evaluated"])
def test_each_rank_goes_on_with_its_own_values_after_three_kills(
    kind: str, start_job: Callable[..., RunningJob], folder: Path
) -> None:
    disturbed = start_job(*JOB, "training.py", kind, *KILLS, directory=folder)
    assert disturbed.finish() == 0, disturbed.everything()
    assert disturbed.account.count("was killed by SIGKILL") == 3, disturbed.everything()
    found = steps(disturbed.output)
    undisturbed = start_job(*JOB, "training.py", kind, directory=folder)
    assert undisturbed.finish() == 0, undisturbed.everything()
    assert found == steps(undisturbed.output)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("pipeline", r"model\.layer\.weight, model\.layer\.bias, optimizer\.state\[0\]\.exp_avg and \d more cannot be"),
        ("own buffers", r"model\.1\.running_mean, model\.1\.running_var, drawn\.total and \d more cannot be"),
    ],
)
def test_another_number_of_ranks_is_refused_by_the_names_of_what_it_would_invent(
    kind: str, names: str, folder: Path
) -> None:
    failed, _, why = run(folder, *TORCHRUN, "training.py", kind)
    assert failed == 0, why
    failed, _, why = run(folder, sys.executable, "-m", "torch.distributed.run", "--standalone", "training.py", kind)
    assert failed != 0
    assert re.search(rf"{names} resharded: the 2 ranks that saved step 14 hold different values", why), why


@pytest.mark.parametrize("kind", ["buffers of rank 0", "evaluated"])
def test_buffers_that_all_ranks_take_from_the_first_go_on_over_another_number_of_ranks(kind: str, folder: Path) -> None:
    ended, before, why = run(folder, *TORCHRUN, "training.py", kind, "8")
    assert ended != 0, why
    one = (sys.executable, "-m", "torch.distributed.run", "--standalone", "training.py")
    ended, after, why = run(folder, *one, kind)
    assert ended == 0, why
    assert "r0 step 7: " in before
    assert after.startswith("r0 step 8: ")
