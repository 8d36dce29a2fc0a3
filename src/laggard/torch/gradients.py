"""Gradients that no optimizer has used yet: what a checkpoint in the middle of accumulating them consists of, too."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.optim.optimizer import register_optimizer_step_post_hook

_USED = "_laggard_used"  # attribute of a gradient: its version when an optimizer used it


class UnusedGradients:
    """The gradients of modules that were changed since an optimizer has used them, as something that has a state."""

    def __init__(self, module: torch.nn.Module, also: Mapping[str, object]) -> None:
        others = {f"{name}/": each for name, each in also.items() if isinstance(each, torch.nn.Module)}
        self._modules = {"": module} | others  # by what comes before the names of their parameters
        _mark_used()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters, by their names."""
        modules = self._modules.items()
        return {prefix + name: each for prefix, module in modules for name, each in module.named_parameters()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the gradients.

        Raises
        ------
        ValueError
            If `fully_shard` holds gradients back that are not reduced yet.
        """
        if hold_gradients_back(self._modules.values()):
            raise ValueError(
                "a checkpoint in the middle of accumulating gradients that fully_shard has not reduced yet; call save "
                "after the optimizer's step, or with set_requires_gradient_sync(True)"
            )
        all_of_them = {name: each.grad for name, each in self.parameters.items() if each.grad is not None}
        return {name: each for name, each in all_of_them.items() if not _is_used(_local(each)) and _local(each).any()}

    def load_state_dict(self, gradients: dict[str, torch.Tensor]) -> None:
        """Take over gradients."""
        parameters = self.parameters
        for name, gradient in gradients.items():
            parameters[name].grad = gradient.to(parameters[name].device)


@functools.cache
def _mark_used() -> None:
    """Have each optimizer of this process mark the gradients that it uses."""
    register_optimizer_step_post_hook(lambda optimizer, *_: _mark(optimizer))


def _mark(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = _local(parameter.grad)
                setattr(gradient, _USED, gradient._version)


def _is_used(gradient: torch.Tensor) -> bool:
    return bool(getattr(gradient, _USED, None) == gradient._version)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor: the same object each time, which `to_local` does not promise."""
    return getattr(tensor, "_local_tensor", tensor)


def hold_gradients_back(modules: Iterable[torch.nn.Module]) -> bool:
    """Return whether `fully_shard` holds gradients of modules back that are not reduced yet."""
    return any(_holds_back(each) for module in modules for each in module.modules())


def _holds_back(module: torch.nn.Module) -> bool:
    if not isinstance(module, FSDPModule):
        return False
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", [state._fsdp_param_group])
    held = [each for group in groups if group is not None for each in group.fsdp_params]
    return any(
        each.unsharded_accumulated_grad is not None
        or (hasattr(each, "_unsharded_param") and each._unsharded_param.grad is not None)
        for each in held
    )
