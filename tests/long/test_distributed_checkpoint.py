"""Trainings that are split over ranks go on with another number of ranks, as if nothing had happened."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")

DEADLINE_S = 280.0
# A test waits for two drivers.
pytestmark = pytest.mark.timeout(2.5 * DEADLINE_S)

# Runs of a program, one after the other, each with ranks of its own: PyTorch is imported once, and they are forked.
DRIVER = """
import json, os, signal, sys, traceback
import laggard.torch.resuming, laggard.torch.storage
import torch.distributed.checkpoint.state_dict, torch.distributed.fsdp, torch.distributed.tensor.parallel

program = compile(open(sys.argv[1]).read(), sys.argv[1], "exec")
runs = json.loads(sys.argv[2])


def work(number, rank, layout, ranks, last):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    os.environ["RENDEZVOUS"] = f"file://{os.path.abspath(f'rendezvous{number}')}"
    sys.argv = ["train.py", layout, str(last)]
    try:
        exec(program, {"__name__": "__main__"})
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def lead(number, layout, ranks, last):
    children = []
    for rank in range(ranks):
        if not (child := os.fork()):
            work(number, rank, layout, ranks, last)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            os._exit(1)
    os._exit(0)


for number, run in enumerate(runs):
    if not (leader := os.fork()):
        lead(number, *run)
    if os.waitpid(leader, 0)[1]:
        sys.exit(f"{run} failed")
"""

# All ranks have the same data, so that their number changes nothing; buffers and optimizer count too.
HEAD = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import laggard.torch
from laggard import Checkpointer, State
from laggard.torch import CheckpointReader, CheckpointWriter

torch.manual_seed(1)
torch.set_num_threads(1)
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=ranks)
layout, last = sys.argv[1], int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
if layout == "fsdp":
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (ranks,)))
elif layout == "tp":
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
elif layout in ("plain", "plain by fsdp"):
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    if layout == "plain by fsdp":
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (ranks,)))
elif layout == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train(step):
    torch.manual_seed(step)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
    return loss

"""

RESUME = """
run = laggard.torch.resume(model, optimizer, every=3)
for step in range(run.step, last):
    run.save(step, loss=train(step))
dist.destroy_process_group()
"""

DCP = """
checkpoints = Checkpointer(State.current(), rank=rank, ranks=ranks)


def state(step):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "loop": {"step": step, "note": ("all", [ranks])}}


steps = [checkpoints.latest()]
dist.broadcast_object_list(steps)
first = 0
if steps[0] is not None:
    found = state(0)
    dcp.load(found, storage_reader=CheckpointReader(checkpoints, steps[0]))
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    first = found["loop"]["step"]
for step in range(first, last):
    train(step)
    if step == last - 2:
        dcp.save(state(step + 1), storage_writer=CheckpointWriter(checkpoints, step + 1))
    if step == last - 1:
        dcp.async_save(state(step + 1), storage_writer=CheckpointWriter(checkpoints, step + 1)).result()
dist.destroy_process_group()
"""


def run(folder: Path, program: str, *runs: tuple[str, int, int]) -> list[str]:
    """Run a program several times (layout, number of ranks, last step), and return the lines of its steps."""
    folder.mkdir(exist_ok=True)
    script, driver = folder / "train.py", folder / "driver.py"
    script.write_text(HEAD + program)
    driver.write_text(DRIVER)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAGGARD_")}
    with subprocess.Popen(
        [sys.executable, "-P", driver, script, json.dumps(runs)],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            output, errors = running.communicate(timeout=DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, errors
    return re.findall(r"^step \d+: loss .*$", output, re.MULTILINE)


@pytest.mark.parametrize("program", [RESUME, DCP], ids=["resume", "dcp"])
def test_a_model_split_by_fsdp_goes_on_with_more_ranks_and_with_one(program: str, tmp_path: Path) -> None:
    lines = run(tmp_path / "disturbed", program, ("fsdp", 2, 3), ("fsdp", 3, 6), ("fsdp", 1, 9))

    assert lines == run(tmp_path / "undisturbed", program, ("fsdp", 1, 9))
    assert len(lines) == 9


def test_a_model_goes_on_in_another_layout_split_or_whole(tmp_path: Path) -> None:
    stages = (("tp", 2, 3), ("tp", 3, 6), ("plain by fsdp", 2, 9), ("plain", 1, 12), ("plain by fsdp", 2, 15))
    lines = run(tmp_path / "disturbed", RESUME, *stages)

    assert lines == run(tmp_path / "undisturbed", RESUME, ("plain", 1, 15))
    assert len(lines) == 15


def test_a_replicated_model_goes_on_with_more_ranks(tmp_path: Path) -> None:
    lines = run(tmp_path / "disturbed", RESUME, ("ddp", 1, 3), ("ddp", 2, 6))

    assert lines == run(tmp_path / "undisturbed", RESUME, ("ddp", 1, 6))
    assert len(lines) == 6
