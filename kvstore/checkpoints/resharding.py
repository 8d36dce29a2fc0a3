"""One rank's part of a checkpoint, whatever the number of ranks that saved it.

Each shard is opened without its large values; of the blocks, only the rows that a rank needs are read.  What is not a
block is taken from the lowest rank that saved it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.checkpoints.shard import Shard
from laggard.kvstore.errors import MissingElementsError, ReshardingError
from laggard.kvstore.values.blocks import Block, Region, plan_reads
from laggard.kvstore.values.codec import path_text
from laggard.kvstore.values.decoding import Value, leaf_bytes, leaf_of
from laggard.kvstore.values.tensors import view_of

Path: TypeAlias = "tuple[str | int, ...]"
"""Where a value is in a tree: keys of dicts, and positions in lists."""

Regions: TypeAlias = Callable[[Path, tuple[int, ...], Sequence[Region]], Region]
"""Which elements of an array this rank wants, given its path, its shape, and the regions that were saved."""


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """A value in a shard that has not been read."""

    shard: Shard
    kind: str
    content: Any
    start: int  # where its bytes are in the shard
    stop: int

    def read(self) -> Value:
        """Return the value."""
        return leaf_of(self.kind, self.content, self.shard.read(self.start, self.stop))


class StoredView:
    """A tensor in the memory of another, that has not been read."""

    def __init__(self, base: StoredLeaf, *place: Any) -> None:
        self._base = base
        self._place = place

    def read(self) -> Value:
        """Return the tensor."""
        return view_of(self._base.read(), *self._place)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block in a shard that has not been read."""

    data: StoredLeaf
    region: Region
    shape: tuple[int, ...]

    def read_rows(self, region: Region) -> tuple[memoryview, tuple[int, ...], tuple[slice, ...]]:
        """Read the rows of the block that a region lies in, which are stored one after the other."""
        data = self.data
        if not region.shape:
            return data.shard.read(data.start, data.stop), (), ()
        rows, *others = region.slices(self.region)
        row_bytes = (data.stop - data.start) // self.region.shape[0]
        content = data.shard.read(data.start + rows.start * row_bytes, data.start + rows.stop * row_bytes)
        return content, (region.shape[0], *self.region.shape[1:]), (slice(None), *others)

    @property
    def type(self) -> tuple[str, object]:
        """Whether it is an array or a tensor, and of which dtype."""
        return self.data.kind, self.data.content[0]


def open_tree(shard: Shard) -> Value:
    """Return the tree of a shard with a `StoredLeaf` for each large value, and a `StoredBlock` for each block."""

    def leaf(kind: str, content: Any, start: int, stop: int) -> Value:
        found = StoredLeaf(shard, kind, content, start, stop)
        return found.read() if kind == "text" else found  # a text may be the key of a dict

    return shard.tree(leaf, StoredBlock, StoredView)


def even_regions(rank: int, ranks: int) -> Regions:
    """Return regions that divide each array evenly along the axis that it was split along, like `Region.along`."""

    def region(path: Path, shape: tuple[int, ...], saved: Sequence[Region]) -> Region:
        split = [axis for axis in range(len(shape)) if any(part.shape[axis] != shape[axis] for part in saved)]
        if len(split) > 1:
            raise ReshardingError(
                path_text(path), f"it is split along axes {split}; say which region you want (regions=)"
            )
        return Region.along(split[0], shape, rank, ranks) if split else Region.whole(shape)

    return region


def reshard(trees: Sequence[Value], regions: Regions, *, path: Path = ()) -> Value:
    """Return one rank's part of a checkpoint."""
    first = trees[0]
    blocks = [tree for tree in trees if isinstance(tree, StoredBlock)]
    if blocks:
        return _assemble(path, blocks, regions)
    if isinstance(first, dict):
        alike = [tree for tree in trees if isinstance(tree, dict)]
        keys = dict.fromkeys(key for tree in alike for key in tree)
        pairs = [
            (key, reshard([tree[key] for tree in alike if key in tree], regions, path=(*path, key))) for key in keys
        ]
        return with_items(first, pairs)
    if type(first) in (list, tuple):
        alike = [tree for tree in trees if type(tree) is type(first)]
        longest = max(map(len, alike))
        return type(first)(
            reshard([tree[n] for tree in alike if n < len(tree)], regions, path=(*path, n)) for n in range(longest)
        )
    return first.read() if isinstance(first, StoredLeaf | StoredView) else first


def read_whole(tree: Value) -> Value:
    """Return a tree from `open_tree` with its values, whole blocks among them."""
    return reshard([tree], lambda path, shape, saved: saved[0])  # noqa: ARG005


def with_items(like: dict[Any, Any], pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict of the same kind; a module's state_dict has the versions of its parts in an attribute."""
    made = type(like)(dict(pairs))
    if isinstance(made, OrderedDict):
        vars(made).update(vars(like))
    return made


def _assemble(path: Path, blocks: Sequence[StoredBlock], regions: Regions) -> Block:
    first = blocks[0]
    for block in blocks:
        if (block.shape, block.type) != (first.shape, first.type):
            reason = f"a rank saved {first.type} of shape {first.shape}, another {block.type} of shape {block.shape}"
            raise ReshardingError(path_text(path), reason)
    saved = [block.region for block in blocks]
    wanted = regions(path, first.shape, saved)
    if len(wanted.shape) != len(first.shape) or any(map(int.__gt__, wanted.stop, first.shape)):
        raise ReshardingError(path_text(path), f"the region {wanted} is not within its shape {first.shape}")
    pieces, gaps = plan_reads(wanted, saved)
    if gaps:
        raise MissingElementsError(path_text(path), tuple(map(str, gaps)), first.shape)

    dtype, _, order = first.data.content
    if first.region == wanted:  # nothing to put together
        return Block(first.data.read(), wanted, first.shape)

    content = [dtype, list(wanted.shape), order]
    target = np.empty(leaf_bytes(first.data.kind, content), np.uint8)
    if pieces:
        elements = target.view(np.dtype((np.void, len(target) // wanted.size))).reshape(wanted.shape)
        for piece in pieces:
            part: Any = (*piece.region.slices(wanted), ...)  # with the dots, a view of an array of no axes too
            _copy(piece.region, blocks[piece.source], elements[part])
    return Block(leaf_of(first.data.kind, content, target.data), wanted, first.shape)


def _copy(region: Region, block: StoredBlock, target: NDArray[np.void]) -> None:
    content, shape, part = block.read_rows(region)
    target[...] = np.frombuffer(content, target.dtype).reshape(shape)[part]
