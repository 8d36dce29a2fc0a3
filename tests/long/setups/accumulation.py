"""Gradients that three steps accumulate, saved in the middle of it; until the third, each rank has its own."""

from contextlib import nullcontext

import torch
from parts import EVERY, begin, end, loader, network, steps
from torch.nn.parallel import DistributedDataParallel

import laggard.torch

begin()
model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    is_last = step % 3 == 2
    with nullcontext() if is_last else model.no_sync():
        loss = model(next(batches)).square().mean()
        loss.backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
    end(run, step, loss)
