"""A model that two groups of two ranks hold alike, each split by fully_shard."""

import torch
from parts import EVERY, begin, end, loader, network, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import laggard.torch

begin()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
model = network()
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
run = laggard.torch.resume(model, optimizer, scheduler, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    loss = model(next(batches)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    end(run, step, loss)
