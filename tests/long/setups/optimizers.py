"""Two models, each with an optimizer; one takes a step when the other has taken three."""

import torch
from parts import EVERY, begin, end, loader, network, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laggard.torch

begin()
critic = DistributedDataParallel(network(), bucket_cap_mb=0.001)
maker = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8)), bucket_cap_mb=0.001)
optimizer = torch.optim.AdamW(critic.parameters(), lr=0.01)
other = torch.optim.RMSprop(maker.parameters(), lr=0.01)
run = laggard.torch.resume(critic, optimizer, also={"maker": maker, "other": other}, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    batch = next(batches)
    loss = critic(torch.cat([batch, maker(torch.randn(2, 8)).detach()])).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made = critic(maker(torch.randn(2, 8))).mean()
    made.backward()
    if step % 3 == 2:
        other.step()
        other.zero_grad()
    end(run, step, loss, made)
