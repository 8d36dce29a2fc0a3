"""A model that torch.compile translates, anew in each launch."""

import torch
from parts import EVERY, begin, end, loader, network, steps
from torch.nn.parallel import DistributedDataParallel

import laggard.torch

begin()
model = torch.compile(DistributedDataParallel(network()))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    loss = model(next(batches)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end(run, step, loss)
