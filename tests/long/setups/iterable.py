"""A stream of rows in an order of each epoch's own, which two workers read, with noise that they draw."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from parts import EVERY, Numbers, begin, end, network, steps
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import laggard.torch


class Stream(IterableDataset[torch.Tensor]):  # type: ignore[misc]  # mypy does not read PyTorch
    """Every so manieth row for each worker of each rank."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, rows = get_worker_info(), Numbers()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.epoch))
        for index in order[dist.get_rank() * 2 + worker.id :: 2 * dist.get_world_size()]:
            yield rows[int(index)]


begin()
model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
loader = DataLoader(Stream(), 2, num_workers=2)
for step, batch in zip(steps(run), run.batches(loader), strict=False):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end(run, step, loss)
