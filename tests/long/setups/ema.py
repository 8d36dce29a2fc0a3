"""An average of the weights, which the program names."""

import torch
from parts import EVERY, begin, end, loader, network, steps
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import laggard.torch

begin()
model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, also={"average": average}, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    batch = next(batches)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model.module)
    with torch.no_grad():
        end(run, step, loss, average.eval()(batch).sum())
