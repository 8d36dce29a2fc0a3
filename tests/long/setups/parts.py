"""What the set-ups beside this file have in common: data, a model, and steps of which three end with a kill."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from laggard.torch.resuming import Resumed

STEPS, EVERY = 14, 2
KILLS = [int(step) for step in sys.argv[1:]]


def begin() -> int:
    """Make the process group; return the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    return int(dist.get_rank())


def network() -> nn.Module:
    """Return a small model whose training draws random numbers, and which has buffers."""
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 32), nn.Linear(32, 1))


class Numbers(Dataset[torch.Tensor]):  # type: ignore[misc]  # mypy does not read PyTorch
    """Rows of numbers, with noise that is drawn whenever one is read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=torch.Generator().manual_seed(index)) + torch.rand(8) / 10


def loader(ranks: int | None = None, rank: int | None = None, **options: Any) -> DataLoader[torch.Tensor]:
    """Return a loader of this rank's share of the numbers: two epochs and more in all steps."""
    data = Numbers()
    return DataLoader(data, 2, sampler=DistributedSampler(data, ranks, rank), **options)


def steps(run: Resumed) -> Iterator[int]:
    """Yield the steps to run."""
    sys.stdout.write(f"r{dist.get_rank()} launch {run.job.launch}: from step {run.step}\n")
    yield from range(run.step, STEPS)
    dist.destroy_process_group()


def end(run: Resumed, step: int, *losses: torch.Tensor) -> None:
    """Print the losses of a step to the last bit, and save, unless this rank is killed now."""
    rank, launch = dist.get_rank(), run.job.launch
    sys.stdout.write(f"r{rank} step {step}: {' '.join(loss.item().hex() for loss in losses)}\n")
    sys.stdout.flush()
    if launch < len(KILLS) and step == KILLS[launch] and rank == launch % dist.get_world_size():
        os.kill(os.getpid(), signal.SIGKILL)
    run.save(step)
