"""What a training consists of, as values of State: random generators, and tensors that are split over ranks."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

__all__ = ["has_shards", "join_shards", "random_states", "restore_random_states", "split_shards"]

_SHARD = "laggard.torch.shard"


def random_states() -> dict[str, Any]:
    """Return the states of the process's random generators: Python's, NumPy's, PyTorch's, and that of its GPU."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set the random generators to what `random_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def has_shards(module: torch.nn.Module) -> bool:
    """Return whether the parameters of a module are split over ranks (``fully_shard``, tensor parallelism)."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def split_shards(tree: Any) -> Any:
    """Return a state_dict with this rank's part of each split tensor."""
    if isinstance(tree, DTensor):
        return (_SHARD, tree.to_local(), tree.shape)
    return _mapped(split_shards, tree)


def join_shards(tree: Any, like: Any) -> Any:
    """Return a state_dict with split tensors again.

    Parameters
    ----------
    tree
        What `split_shards` returned on this rank.
    like
        For a part of it, a tensor that is split in the same way, or the same tree of such tensors.
    """
    if isinstance(tree, tuple) and len(tree) == 3 and tree[0] == _SHARD:
        _, local, shape = tree
        local = local.to(like.to_local().device)
        return DTensor.from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=shape, stride=like.stride()
        )
    if isinstance(tree, dict):
        pairs = [
            (name, join_shards(item, like.get(name) if isinstance(like, dict) else like)) for name, item in tree.items()
        ]
        return _with_attributes(tree, pairs)
    return _mapped(lambda item: join_shards(item, like), tree)


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return _with_attributes(tree, [(name, change(item)) for name, item in tree.items()])
    if type(tree) in (list, tuple):
        return type(tree)(map(change, tree))
    return tree


def _with_attributes(tree: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict like another one; a module's state_dict has the versions of its parts in an attribute."""
    if not isinstance(tree, OrderedDict):
        return dict(pairs)
    changed = OrderedDict(pairs)
    vars(changed).update(vars(tree))
    return changed
