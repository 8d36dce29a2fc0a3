"""Workers that live on from epoch to epoch; what they draw depends on the row alone."""

import torch
from parts import EVERY, Numbers, begin, end, network, steps
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import laggard.torch


class Seeded(Numbers):
    """Rows whose noise is that of a generator of their own."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


begin()
model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
data = Seeded()
loader = DataLoader(data, 2, sampler=DistributedSampler(data), num_workers=2, persistent_workers=True)
for step, batch in zip(steps(run), run.batches(loader), strict=False):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end(run, step, loss)
