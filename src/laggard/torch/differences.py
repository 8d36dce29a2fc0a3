"""What the ranks of a training hold alike, and what each holds for itself: their state_dicts, leaf by leaf.

A leaf that several ranks hold alike is stored by the lowest of them.  A leaf of which two ranks hold different values
has no value for another number of ranks.  Both follow from the leaves' digests (`divide`).  Most differences show in
the first few KiB of a leaf, so a leaf is read as a whole only if these are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from xxhash import xxh3_64, xxh3_64_intdigest

from laggard.kvstore.checkpoints.layout import LeafDigests
from laggard.kvstore.checkpoints.resharding import Path, with_items
from laggard.kvstore.errors import CorruptValueError, DamagedCheckpointError, NoCheckpointError
from laggard.kvstore.values.codec import encode, path_text
from laggard.torch.training_state import blocks_in, on_host, region_of, to_blocks

T = TypeVar("T")

Digests: TypeAlias = Mapping[Path, int]
"""Of one rank's leaves, by their paths."""

Exchange: TypeAlias = Callable[[Digests], Sequence[Digests]]
"""Returns what each rank has called it with, in the order of the ranks."""

Save: TypeAlias = Callable[[dict[str, Any], LeafDigests | None], None]
"""Saves what a rank stores, and notes the digests of leaves that it has copied."""

_SAMPLE_BYTES = 4096
# A smaller leaf is stored by every rank that has it: of another node's shard, at least 4 MiB are fetched.
_ALONE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Division:
    """What a rank has in common with the others."""

    holders: Mapping[Path, int]  # of each leaf: the lowest rank that holds the same value
    differing: tuple[Path, ...]  # the leaves of which another rank holds another value
    is_like_first: bool  # whether rank 0 holds all that this rank holds, and nothing else, in the same order


def divide(ranks: Sequence[Digests], rank: int) -> Division:
    """Return what a rank has in common with the others, given the digests of all."""
    own = ranks[rank]
    if all(held is own for held in ranks):  # the usual case, in which there is nothing to look up
        return Division(dict.fromkeys(own, 0), (), is_like_first=True)
    holders = {path: next(n for n, held in enumerate(ranks) if held.get(path) == own[path]) for path in own}
    differing = tuple(path for path in own if any(held.get(path, own[path]) != own[path] for held in ranks))
    return Division(holders, differing, is_like_first=[*own.items()] == [*ranks[0].items()])


def compare(
    leaves: Mapping[Path, Any],
    rank: int,
    exchange: Exchange,
    of_first: Collection[Path],
    known: LeafDigests,
    meanwhile: Callable[[], None] = lambda: None,
) -> Division:
    """Compare this rank's leaves with those of the others.

    Parameters
    ----------
    leaves
        Those of what it is about to save, by their paths.
    rank
        Its number.
    exchange
        Called twice.
    of_first
        Paths whose value is that of rank 0, whatever the others hold.
    known
        Digests of leaves that are known once `meanwhile` has returned.
    meanwhile
        Called before large leaves are read; if it raises, the others have their answer all the same.
    """
    samples = {p: 0 if p in of_first else _digest(p, leaf, known, _SAMPLE_BYTES) for p, leaf in leaves.items()}
    held = exchange(samples)
    others = held if all(each is samples for each in held) else [*held[:rank], *held[rank + 1 :]]
    alike = {
        path: leaf
        for path, leaf in leaves.items()
        if path not in of_first
        and nbytes_of(leaf) > _SAMPLE_BYTES
        and any(each.get(path) == samples[path] for each in others)
    }
    try:
        meanwhile()
    finally:
        digests = exchange(samples | {path: _digest(path, leaf, known) for path, leaf in alike.items()})
    return divide(digests, rank)


def exchange(own: Digests) -> Sequence[Digests]:
    """Return the digests of all ranks of the process group, in their order; all of them call this."""
    if len(set(gathered(xxh3_64_intdigest(repr(own).encode())))) == 1:
        return [own] * dist.get_world_size()
    return gathered(own)


def gathered(value: Any) -> list[Any]:
    """Return what each rank of the process group has called it with, in their order."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def read_by_all(rank: int, read: Callable[[], T]) -> tuple[T | None, str]:
    """Return what this rank reads of a checkpoint, and what is wrong with it on any rank; all ranks call it."""
    content, reason = None, ""
    try:
        content = read()
    except (CorruptValueError, DamagedCheckpointError, NoCheckpointError) as error:
        reason = f"rank {rank}: {error.reason}"
    reasons = gathered(reason) if dist.is_available() and dist.is_initialized() else [reason]
    return content, next(filter(None, reasons), "")


def store(tree: Any, rank: int, exchange: Exchange | None, of_first: Collection[Path], save: Save) -> None:
    """Save what a rank stores of its state_dicts: nothing if rank 0 has the same, and no large leaf of a lower rank.

    Called by all ranks at once; `exchange` is None if there is one only.
    """
    known = LeafDigests()
    if rank == 0:  # all that it has, whatever the others hold; so it need not wait for them
        tree = on_host(tree)
        parts = {"state": to_blocks(tree), "elsewhere": [], "differing": []}
        if exchange is None:
            save(parts, None)
        else:
            compare(dict(leaves_of(tree)), rank, exchange, of_first, known, lambda: save(parts, known))
        return
    leaves = dict(leaves_of(tree))
    division = compare(leaves, rank, cast("Exchange", exchange), of_first, known)
    state = to_blocks(tree)
    if division.is_like_first and next(blocks_in(state), None) is None:
        save({}, None)
        return
    elsewhere = {
        path: holder
        for path, holder in division.holders.items()
        if holder < rank and nbytes_of(leaves[path]) >= _ALONE_BYTES and not isinstance(leaves[path], DTensor)
    }
    save(
        {
            "state": _with_leaves(state, dict.fromkeys(elsewhere)),
            "elsewhere": [[list(path), holder] for path, holder in elsewhere.items()],
            "differing": [list(path) for path in division.differing],
        },
        None,
    )


def filled(shard: Mapping[str, Any], shard_of: Callable[[int], Mapping[str, Any]]) -> Any:
    """Return the state_dicts of a shard, with those leaves that lower ranks have stored."""
    found = {tuple(path): _at(shard_of(holder)["state"], path) for path, holder in shard["elsewhere"]}
    return _with_leaves(shard["state"], found)


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a state_dict that other ranks may hold too, each with its path.

    A list of plain values is one leaf, and so is the length of any other.  A part of a split tensor has its region in
    its path; one that no other rank holds is left out.
    """
    if isinstance(tree, dict) and tree:
        for name, item in tree.items():
            yield from leaves_of(item, (*path, name))
    elif type(tree) in (list, tuple) and any(isinstance(item, dict | list | tuple | torch.Tensor) for item in tree):
        yield path, len(tree)
        for number, item in enumerate(tree):
            yield from leaves_of(item, (*path, number))
    elif not isinstance(tree, DTensor):
        yield path, tree
    elif not _is_held_once(tree):
        yield (*path, str(region_of(tree))), tree


def nbytes_of(leaf: Any) -> int:
    """Return the size of a leaf in bytes, if it is a tensor or an array; 0 of any other."""
    return int(leaf.nbytes) if isinstance(leaf, torch.Tensor | np.ndarray) else 0


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _with_leaves(tree: Any, changed: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return a tree with other leaves at some paths."""
    if path in changed:
        return changed[path]
    if isinstance(tree, dict):
        return with_items(tree, [(name, _with_leaves(item, changed, (*path, name))) for name, item in tree.items()])
    if type(tree) in (list, tuple):
        return type(tree)(_with_leaves(item, changed, (*path, number)) for number, item in enumerate(tree))
    return tree


def _is_held_once(tensor: DTensor) -> bool:
    """Return whether no other rank holds the same part of a tensor."""
    is_split = not any(placement.is_replicate() or placement.is_partial() for placement in tensor.placements)
    return is_split and tensor.device_mesh.size() == dist.get_world_size()


def _digest(path: Path, leaf: Any, known: LeafDigests, most_bytes: int | None = None) -> int:
    """Return the digest of a leaf, or of its shape and first elements if it is a tensor of more bytes."""
    digest = xxh3_64()
    leaf = leaf.to_local() if isinstance(leaf, DTensor) else leaf
    if most_bytes is not None and isinstance(leaf, torch.Tensor) and leaf.nbytes > most_bytes:
        digest.update(str(tuple(leaf.shape)).encode())
        leaf = _first_elements(leaf, most_bytes // leaf.element_size())
    description, *memory = encode(path_text(path), leaf).parts
    digest.update(description)
    for part in memory:
        digest.update(known.of(part))
    return int(digest.intdigest())


def _first_elements(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return a box of about so many elements at a corner of a tensor."""
    for axis, length in enumerate(tensor.shape):
        kept = min(length, max(1, count // math.prod(tensor.shape[axis + 1 :])))
        tensor = tensor.narrow(axis, 0, kept)
        if kept > 1:
            break
    return tensor
