"""What a training consists of, as values of State: random generators, and blocks of tensors split over ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from laggard.kvstore.checkpoints.resharding import Path, with_items
from laggard.kvstore.values.blocks import Block, Region
from laggard.kvstore.values.tensors import memory_of, shared_memory, tensors_in, view_of
from laggard.torch.gradients import UnusedGradients


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


def bytes_in(tree: Any) -> int:
    """Return the size of the tensors in a state_dict in bytes; of split ones, of this rank's parts."""
    if isinstance(tree, DTensor):
        return bytes_in(tree.to_local())
    if isinstance(tree, torch.Tensor):
        return int(tree.numel() * tree.element_size())
    if isinstance(tree, Mapping):
        return sum(map(bytes_in, tree.values()))
    return sum(map(bytes_in, tree)) if isinstance(tree, list | tuple) else 0


def has_blocks(module: torch.nn.Module) -> bool:
    """Return whether the parameters of a module are split over ranks (``fully_shard``, tensor parallelism)."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def region_of(tensor: DTensor) -> Region:
    """Return which elements of a split tensor this rank holds."""
    chunks = tensor.__create_chunk_list__()
    local = tuple(tensor.to_local().shape)
    if len(chunks) != 1 or tuple(chunks[0].sizes) != local:
        raise TypeError(f"a tensor split by {tensor.placements} cannot be saved: a rank's part of it is not one box")
    # Of an empty part, the place does not matter, and it may be said to lie behind the end.
    start = tuple(chunks[0].offsets) if tensor.to_local().numel() else (0,) * len(local)
    return Region(start, local)


def to_blocks(tree: Any) -> Any:
    """Return a state_dict with this rank's part of each split tensor."""
    if isinstance(tree, DTensor):
        return Block(tree.to_local(), region_of(tree), tuple(tree.shape))
    return mapped(to_blocks, tree)


def on_host(tree: Any) -> Any:
    """Return a state_dict whose tensors are in the memory of the host; those that were one, or overlap, do so there."""
    copies: dict[Any, torch.Tensor] = {}
    shared = shared_memory(tensor for tensor in tensors_in(tree) if not tensor.is_cpu)

    def copied(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return mapped(copied, item)
        memory = None if item.is_cpu else memory_of(item)
        if memory is None:
            return item.cpu()  # itself if it is there
        if memory in shared:
            base, start = shared[memory]
            return view_of(copied(base), start, list(item.shape), list(item.stride()))
        if memory not in copies:
            copies[memory] = item.cpu()
        return copies[memory]

    return copied(tree)


def from_blocks(tree: Any, like: Any) -> Any:
    """Return a state_dict whose tensors are split as those of this launch are, or whole where they are whole."""
    if isinstance(tree, Block):
        return _split_like(tree.data, like) if isinstance(like, DTensor) else tree.data
    if isinstance(tree, torch.Tensor) and isinstance(like, DTensor) and tree.shape == like.shape:
        return _split_like(tree[region_of(like).slices()], like)  # it was whole
    if isinstance(tree, dict):
        return with_items(tree, [(name, from_blocks(item, like_at(like, (name,)))) for name, item in tree.items()])
    return mapped(lambda item: from_blocks(item, like), tree)


def _split_like(local: torch.Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        local.to(like.to_local().device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def like_of(part: Any) -> Any:
    """Return, for each tensor in the state_dict of a part of a training, one that is split in the same way."""
    if isinstance(part, UnusedGradients):
        return part.parameters
    if not isinstance(part, torch.optim.Optimizer):
        return part.state_dict()
    parameters = [parameter for group in part.param_groups for parameter in group["params"]]
    return {"state": dict(enumerate(parameters))}


def like_at(like: Any, path: Path) -> Any:
    """Return what is split like the value at a path: the tensor there, or the parameter whose state it is."""
    for name in path:
        if isinstance(like, dict):
            like = like.get(name)
    return like


def blocks_in(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Block]]:
    """Yield the blocks of a tree, each with its path."""
    if isinstance(tree, Block):
        yield path, tree
    elif isinstance(tree, dict):
        for name, item in tree.items():
            yield from blocks_in(item, (*path, name))
    elif type(tree) in (list, tuple):
        for number, item in enumerate(tree):
            yield from blocks_in(item, (*path, number))


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a dictionary, list or tuple with its items changed; anything else as it is."""
    if isinstance(tree, dict):
        return with_items(tree, [(name, change(item)) for name, item in tree.items()])
    if type(tree) in (list, tuple):
        return type(tree)(map(change, tree))
    return tree
