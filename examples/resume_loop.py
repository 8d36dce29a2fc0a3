"""A plain training loop with DistributedDataParallel that goes on where it stopped: the two lines of laggard.torch.

    python examples/resume_loop.py
    torchrun --nproc-per-node=2 examples/resume_loop.py
    laggard --local-nodes=2 --virtual-gpus=2 --resilient --per-device examples/resume_loop.py --fail-at=25

It is a script for torchrun, and runs unchanged under laggard. With --fail-at the last rank fails there in the first
launch; the losses are those of a run in which nothing happened.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import laggard.torch

FEATURES = 8


def main() -> int:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=40, help="steps in all (default: %(default)s)")
    parser.add_argument("--width", type=int, default=32, help="size of the hidden layer (default: %(default)s)")
    parser.add_argument("--fail-at", type=int, metavar="STEP", help="where the last rank fails, in the first launch")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    inputs = torch.randn(128, FEATURES)
    dataset = TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, ranks, rank))
    width = arguments.width
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 1))
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)

    run = laggard.torch.resume(model, optimizer, scheduler, every=10)
    if rank == 0:
        print(f"launch {run.job.launch}: {ranks} ranks, from step {run.step} of {arguments.steps}", flush=True)
    for step, (batch, targets) in zip(range(run.step, arguments.steps), run.batches(loader), strict=False):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.save(step, loss=loss)
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {loss.item():.9f}", flush=True)
        if step + 1 == arguments.fail_at and rank == ranks - 1 and not run.job.restarted:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
