"""torchdata's loader, shuffled, which draws a random number when it is made."""

import torch
import torch.distributed as dist
from parts import EVERY, Numbers, begin, end, network, steps
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset
from torchdata.stateful_dataloader import StatefulDataLoader

import laggard.torch

rank = begin()
model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
loader = StatefulDataLoader(Subset(Numbers(), range(rank, 40, dist.get_world_size())), 2, shuffle=True)
for step, batch in zip(steps(run), run.batches(loader), strict=False):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end(run, step, loss)
