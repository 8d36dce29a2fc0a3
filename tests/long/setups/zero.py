"""An optimizer whose state is split over the ranks, each with the parameters that it updates."""

import torch
from parts import EVERY, begin, end, loader, network, steps
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import laggard.torch

begin()
model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
run = laggard.torch.resume(model, optimizer, scheduler, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    loss = model(next(batches)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    end(run, step, loss)
