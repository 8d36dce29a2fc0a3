"""One expert on each rank, under the same names, behind a router that all ranks hold alike."""

import torch
import torch.distributed as dist
from parts import EVERY, begin, end, loader, steps
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd as sent_to_all
from torch.nn.parallel import DistributedDataParallel

import laggard.torch


class Experts(nn.Module):  # type: ignore[misc]  # mypy does not read PyTorch
    """Sends a row to each expert, and weights what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, dist.get_world_size())
        torch.manual_seed(dist.get_rank())
        self.expert = nn.Linear(8, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        sent = sent_to_all(rows, None, None, dist.group.WORLD)
        answers = self.expert(sent)
        return sent_to_all(answers, None, None, dist.group.WORLD) * self.router(rows).softmax(1)


begin()
module = Experts()
own = [name for name, _ in module.named_parameters() if name.startswith("expert.")]
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, own)
model = DistributedDataParallel(module)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = laggard.torch.resume(model, optimizer, every=EVERY)
batches = run.batches(loader())
for step in steps(run):
    loss = model(next(batches)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end(run, step, loss)
