"""A model split over all ranks with FSDP2: each saves its own part, and any number of ranks goes on from the parts.

laggard --local-nodes=2 --virtual-gpus=1 --resilient --per-device examples/fsdp2.py --fail-at=15
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import laggard.torch

parser = argparse.ArgumentParser(description="Train a model that is split with FSDP2.")
parser.add_argument("--steps", type=int, default=30, help="steps in all (default: %(default)s)")
parser.add_argument("--fail-at", type=int, metavar="STEP", help="where the last rank fails, in the first launch")
given = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
if on_gpu:
    torch.cuda.set_device(rank % torch.cuda.device_count())
device = "cuda" if on_gpu else "cpu"
torch.manual_seed(1)

layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).to(device)
mesh = dist.device_mesh.init_device_mesh(device, (ranks,))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

run = laggard.torch.resume(model, optimizer, every=10)
if rank == 0:
    print(f"launch {run.job.launch}: {ranks} ranks, from step {run.step} of {given.steps}", flush=True)
for step in range(run.step, given.steps):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 64, generator=generator).to(device)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sin().sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.save(step, loss=loss)
    if step + 1 == given.fail_at and rank == ranks - 1 and not run.job.restarted:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
if rank == 0:
    print(f"done: {given.steps} steps, loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
