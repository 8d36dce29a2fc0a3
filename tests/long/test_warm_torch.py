"""Training with PyTorch from warm processes: the same losses, other chance numbers, loaders and tracebacks as ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.resilience.decision.events import EXIT_NO_PROGRESS
from tests.integration.jobs import RunningJob

pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = pytest.mark.timeout(1500)

DEADLINE_S = 600.0
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, inputs):
        return self.layers(inputs)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        inputs = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return inputs, inputs.sum().reshape(1)
"""
# What a tutorial has: arguments, a module beside it, workers that load data, a process that is spawned.
TRAIN = """
import argparse
import os
import sys
import time
warm = "torch" in sys.modules

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from model import Net, Numbers

def add_up(queue, tensor):
    queue.put(tensor.sum().item())

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    print("warm", warm, "chance", torch.rand(1).item(), "threads", torch.get_num_threads(), flush=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = Numbers()
    model = DDP(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for how in ("fork", "spawn"):
        loader = DataLoader(data, arguments.batch, sampler=DistributedSampler(data), num_workers=1,
                            multiprocessing_context=how)
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("loss", how, round(loss.item(), 6), flush=True)
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=add_up, args=(queue, torch.ones(3)))
    child.start()
    print("spawned", queue.get(), flush=True)
    child.join()
    if rank == 1:
        while os.environ["LAGGARD_LAUNCH"] == "0" and not os.path.exists("fail"):
            time.sleep(0.1)
        raise ValueError(f"launch {os.environ['LAGGARD_LAUNCH']}")
    dist.barrier()

if __name__ == "__main__":
    main()
"""


def of_launch(number: int, output: str) -> list[str]:
    """Return what the ranks printed in a launch, in order, without the chance numbers."""
    found = re.findall(r"\[node1 (rank \d)\] (.*)", output)
    per_rank = {rank: [text for each, text in found if each == rank] for rank, _ in found}
    lines = [f"{rank} {text}" for rank in sorted(per_rank) for text in _part(number, per_rank[rank])]
    return [re.sub(r"warm \w+ chance \S+", "", line) for line in lines]


def _part(number: int, lines: list[str]) -> list[str]:
    begins = [at for at, line in enumerate(lines) if line.startswith("warm ")]
    return lines[begins[number] : (*begins, None)[number + 1]]


def test_a_training_from_warm_processes_is_the_same_training(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    folder = tmp_path / "job0"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (folder / "train.py").write_text(TRAIN)
    options = (
        "--local-nodes=1",
        "--virtual-gpus=2",
        "--resilient",
        "--per-device",
        "--fixed-ranks",
        "--max-restarts=1",
    )
    job = start_job(*options, "train.py", "--batch=8")
    for rank in (0, 1):
        job.wait_for(rf"rank {rank}\] spawned")
    job.wait_for("warm +node1 keeps a process ready that has loaded")
    (folder / "fail").touch()
    assert job.finish(DEADLINE_S) == EXIT_NO_PROGRESS, job.everything()
    assert "2 of 2 ranks were forked from a warm process" in job.account, job.everything()
    assert of_launch(0, job.output) == of_launch(1, job.output)
    told = re.findall(r"warm (\w+) chance (\S+) threads (\d+)", job.output)
    assert sorted(is_warm for is_warm, _, _ in told) == ["False", "False", "True", "True"]
    assert len({chance for _, chance, _ in told}) == 4
    assert {threads for _, _, threads in told} == {"1"}
    tracebacks = re.findall(r"\[node1 rank 1\] \[rank1\]: (.*)", job.account)
    assert len(tracebacks) % 2 == 0
    first, second = tracebacks[: len(tracebacks) // 2], tracebacks[len(tracebacks) // 2 :]
    assert first[:-1] == second[:-1]
    assert (first[-1], second[-1]) == ("ValueError: launch 0", "ValueError: launch 1")
