"""What the way in which a model is spread over ranks means for these, when they keep their processes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from laggard.torch.buckets import Layout, has_new_layout, lay_out, layout_of
from laggard.torch.split_optimizer import SplitOptimizer
from laggard.torch.training_state import has_blocks

_FULLY_SHARD = "torch.distributed.fsdp._fully_shard"


class WholeModel:
    """A model in `DistributedDataParallel`, which each rank has as a whole.

    Attributes
    ----------
    alike
        The ranks that have the same part of it; empty: all.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self.alike: tuple[int, ...] = ()

    def rest(self, before: Layout | None) -> Layout:
        """Return the layout of its buckets between two steps, given that of one step before."""
        return layout_of(self._model) if has_new_layout(self._model) or before is None else before

    def go_back(self, layout: Layout) -> None:
        """Be as between two steps, wherever in one it was left."""
        lay_out(self._model, layout)

    def own(self) -> dict[str, Any]:
        """Return what this rank alone has of it: the buffers that it goes on with, or gives to all others."""
        takes = self._model.require_forward_param_sync  # rank 0's, in the next forward
        buffers = self._model.module.named_buffers() if dist.get_rank() == 0 or not takes else ()
        return {"takes_buffers": takes, "buffers": {name: each.detach().clone() for name, each in buffers}}

    def take_own(self, own: Mapping[str, Any]) -> None:
        """Take over what `own` has returned."""
        self._model.require_forward_param_sync = own["takes_buffers"]
        with torch.no_grad():
            for name, each in own["buffers"].items():
                self._model.module.get_buffer(name).copy_(each)


class SplitModel:
    """A model that `fully_shard` has split on a mesh of two dimensions (HSDP), as `WholeModel`."""

    def __init__(self, model: FSDPModule) -> None:
        self._model: Any = model
        self.alike = _alike(model)
        self._at_rest: list[tuple[Any, Any]] = []

    def rest(self, _: Layout | None) -> Layout:
        """Note how it is between two steps; it has no buckets."""
        self._at_rest = [(each, copy.copy(each)) for each in _changing(self._model)]
        return []

    def go_back(self, _: Layout) -> None:
        """Be as between two steps: what has failed leaves parameters that are gathered, which PyTorch cannot undo."""
        for each, then in self._at_rest:
            each.clear()
            each.extend(then) if isinstance(each, list) else each.update(then)
            for value in each.values() if isinstance(each, dict) else ():
                if isinstance(value, torch.nn.Parameter):
                    value.grad = None  # of a gathered one, too

    def own(self) -> dict[str, Any]:
        """Return that others have all of it."""
        return {}

    def take_own(self, _: Mapping[str, Any]) -> None:
        """Do nothing."""


def why_not(model: torch.nn.Module, parts: Mapping[str, Any], *, has_others: bool) -> str:
    """Return why the ranks of a training cannot keep their processes when one is lost; empty: they can."""
    if has_blocks(model):
        if not isinstance(model, FSDPModule) or len(_alike(model)) < 2:
            return "its model is split, and what a lost rank has of it is in checkpoints alone"
        if next(model.buffers(), None) is not None:
            return "its model is split, and its ranks have buffers of their own"
        groups = {*next(model.parameters()).device_mesh.get_all_groups(), dist.group.WORLD}
    elif not isinstance(model, DistributedDataParallel):
        return "its model is not in DistributedDataParallel"
    elif not model.broadcast_buffers and next(model.module.buffers(), None) is not None:
        return "its ranks have buffers of their own (broadcast_buffers=False)"
    elif model._comm_hooks:
        return "its model has a communication hook"
    else:
        groups = {dist.group.WORLD}
    if any(isinstance(part, SplitOptimizer) for part in parts.values()):
        return "its optimizer is split over ranks"
    if has_others:
        return "it has values in also=, which its ranks may have of their own"
    if not {*dist.distributed_c10d._world.pg_map} <= groups:
        return "it has further process groups"
    return ""


def kept_model(model: torch.nn.Module) -> WholeModel | SplitModel:
    """Return a model that `why_not` has nothing against."""
    return SplitModel(model) if isinstance(model, FSDPModule) else WholeModel(model)


def _alike(model: torch.nn.Module) -> tuple[int, ...]:
    """Return which ranks have the same part of each parameter as this one; empty: none of all, or it is not HSDP."""
    found = {_replicas(each) for each in model.parameters()}
    return found.pop() if len(found) == 1 else ()


def _replicas(parameter: torch.Tensor) -> tuple[int, ...]:
    if not isinstance(parameter, DTensor) or [each.is_shard() for each in parameter.placements] != [False, True]:
        return ()
    mesh = parameter.device_mesh
    return tuple(mesh.mesh[:, mesh.get_coordinate()[1]].tolist())


def _changing(model: torch.nn.Module) -> Iterator[Any]:
    """Yield all lists, sets and dictionaries in which `fully_shard` notes where in a step the model is."""
    seen: dict[int, Any] = {}  # what is kept here has a number of its own
    todo: list[Any] = [each._parameters for each in model.modules()]
    todo += [each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule)]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, dict | list | set):
            yield item
            todo += item.values() if isinstance(item, dict) else item
        elif type(item).__module__.startswith(_FULLY_SHARD) and not isinstance(item, Enum | torch.nn.Module):
            todo.append(vars(item))
