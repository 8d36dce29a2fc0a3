"""How `DistributedDataParallel` groups its gradients into buckets: which decides in what order they are summed.

It lays them out anew after the first backward. Ranks with different layouts would mix up each other's gradients, and
sums in another order differ in the last bits, so a new process gets the layout that the others have.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

Layout = list[list[int]]
"""For each bucket, the numbers of its parameters."""


def has_new_layout(model: DistributedDataParallel) -> bool:
    """Have the buckets laid out anew if that is due, as the next forward would; all ranks ask between two steps."""
    return bool(model.reducer._rebuild_buckets())


def layout_of(model: DistributedDataParallel) -> Layout:
    """Return the layout that the next step will use."""
    numbers = {id(parameter): number for number, parameter in enumerate(model._build_params_for_reducer()[0])}
    with _WithoutMemory():
        buckets = model.reducer._get_zeros_like_grad_buckets()
    return [[numbers[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


def lay_out(model: DistributedDataParallel, layout: Layout) -> None:
    """Give a model a new reducer with a layout; the old one may have been left in the middle of a backward."""
    model.reducer._remove_autograd_hooks()
    del model.reducer
    parameters, are_sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    # It reverses both, since parameters get their gradients in about that order.
    assigned = layout[::-1], [model.bucket_bytes_cap] * len(layout)
    with mock.patch.object(dist, "_compute_bucket_assignment_by_size", return_value=assigned):
        model._ddp_init_helper(parameters, are_sparse, names, model.static_graph)
    if model.static_graph:
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
    for hook, state in model._comm_hooks:
        dist._register_comm_hook(model.reducer, state, hook)


class Buckets:
    """The layouts of all that is in `DistributedDataParallel`, as something that has a state."""

    def __init__(self, models: Iterable[object]) -> None:
        modules = [each for model in models if isinstance(model, torch.nn.Module) for each in model.modules()]
        self._models = [each for each in modules if isinstance(each, DistributedDataParallel)]

    def state_dict(self) -> list[Layout]:
        """Return the layouts that the next step will use; all ranks ask between two steps."""
        for model in self._models:
            has_new_layout(model)
        return list(map(layout_of, self._models))

    def load_state_dict(self, layouts: list[Layout]) -> None:
        """Lay out the buckets of all models as they were."""
        for model, layout in zip(self._models, layouts, strict=False):
            found = layout_of(model)
            if layout != found and sum(map(len, layout)) == sum(map(len, found)):
                lay_out(model, layout)

    @property
    def takes_buffers(self) -> list[bool]:
        """Of each model, whether its next forward takes rank 0's buffers: not after one without gradients or a sync."""
        return [model.require_forward_param_sync for model in self._models]

    @takes_buffers.setter
    def takes_buffers(self, takes: list[bool]) -> None:
        for model, it_does in zip(self._models, takes, strict=False):
            model.require_forward_param_sync = it_does

    def hooks_with_state(self) -> list[str]:
        """Return the communication hooks that have a state, such as PowerSGD's: what each rank has yet to send."""
        hooks = [each for model in self._models for each in model._comm_hooks]
        return [hook.__name__ for hook, state in hooks if not isinstance(state, NoneType | dist.ProcessGroup)]


class _WithoutMemory(TorchDispatchMode):  # type: ignore[misc]  # mypy does not read PyTorch
    """Lets PyTorch make tensors of which nobody reads an element."""

    def __torch_dispatch__(self, *_: Any) -> torch.Tensor:
        return torch.empty(0, device="meta")
