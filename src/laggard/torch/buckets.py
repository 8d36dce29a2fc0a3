"""How `DistributedDataParallel` groups its gradients into buckets: which decides in what order they are summed.

It lays them out anew after the first backward. Ranks with different layouts would mix up each other's gradients, and
sums in another order differ in the last bits, so a new process gets the layout that the others have.
"""

from __future__ import annotations

from unittest import mock

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Layout = list[list[int]]
"""For each bucket, the numbers of its parameters."""


def has_new_layout(model: DistributedDataParallel) -> bool:
    """Have the buckets laid out anew if that is due, as the next forward would; all ranks ask between two steps."""
    return bool(model.reducer._rebuild_buckets())


def layout_of(model: DistributedDataParallel) -> Layout:
    """Return the layout that the next step will use."""
    numbers = {id(parameter): number for number, parameter in enumerate(model._build_params_for_reducer()[0])}
    buckets = model.reducer._get_zeros_like_grad_buckets()
    return [[numbers[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


def lay_out(model: DistributedDataParallel, layout: Layout) -> None:
    """Give a model a new reducer with a layout; the old one may have been left in the middle of a backward."""
    model.reducer._remove_autograd_hooks()
    state = {name: each for name, each in vars(model).items() if name not in ("process_group", "reducer", "logger")}
    del model.reducer
    # It reverses both, since parameters get their gradients in about that order.
    assigned = layout[::-1], [model.bucket_bytes_cap] * len(layout)
    with mock.patch.object(dist, "_compute_bucket_assignment_by_size", return_value=assigned):
        model.__setstate__(state)
