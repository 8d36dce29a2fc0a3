"""Layers split over two ranks by tensor parallelism, and over two by fully_shard on top of that."""

import torch
from parts import EVERY, begin, end, loader, steps
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import laggard.torch

begin()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
batches = run.batches(loader(2, mesh.get_local_rank("data")))
for step in steps(run):
    loss = model(next(batches)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    end(run, step, loss)
