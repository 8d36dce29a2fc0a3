"""Two stages of a pipeline with the same names, each split over two ranks by fully_shard."""

import torch
from parts import EVERY, begin, end, loader, steps
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import laggard.torch

begin()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))
number, group = mesh.get_local_rank("stage"), mesh.get_group("stage")
torch.manual_seed(number)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
fully_shard(model, mesh=mesh["data"])
stage = PipelineStage(model, number, 2, torch.device("cpu"), group=group)
schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=nn.MSELoss())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
batches = run.batches(loader(2, mesh.get_local_rank("data")))
for step in steps(run):
    batch, losses = next(batches), [torch.zeros(1)]
    if number == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch, losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    end(run, step, sum(losses) if number else model[0].weight.to_local().sum())
