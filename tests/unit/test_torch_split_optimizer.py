"""An optimizer whose state is split over ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

import torch.distributed as dist  # noqa: E402 - what follows needs PyTorch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own scripts
    from torch.distributed.optim import ZeroRedundancyOptimizer

from laggard.torch.split_optimizer import SplitOptimizer  # noqa: E402


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def optimizer_after(n_steps: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(n_steps):
        step(model, optimizer, scheduler)
    return model, optimizer, scheduler


def step(model: Any, optimizer: Any, scheduler: Any) -> list[float]:
    optimizer.zero_grad()
    model(torch.ones(3, 2)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    return [*model.weight.flatten().tolist(), scheduler.get_last_lr()[0]]


def test_its_own_part_and_its_learning_rate_come_back() -> None:
    model, optimizer, scheduler = optimizer_after(3)
    assert SplitOptimizer.is_one(optimizer)
    again, other, later = optimizer_after(0)
    again.load_state_dict(model.state_dict())
    later.load_state_dict(scheduler.state_dict())
    SplitOptimizer(other).load_state_dict(deepcopy(SplitOptimizer(optimizer).state_dict()))
    assert step(again, other, later) == step(model, optimizer, scheduler)


def test_one_that_overlaps_with_the_backward_is_refused() -> None:
    _, optimizer, _ = optimizer_after(0)
    optimizer._overlap_with_ddp = True
    with pytest.raises(TypeError, match="overlap_with_ddp=True is not supported; leave that out"):
        SplitOptimizer(optimizer)
