"""Whatever parts were saved, every wanted element is read once, from where it was saved, or named as missing."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.checkpoints.layout import plan
from laggard.kvstore.checkpoints.resharding import even_regions, open_tree, reshard
from laggard.kvstore.checkpoints.shard import Shard
from laggard.kvstore.errors import MissingElementsError
from laggard.kvstore.values import codec
from laggard.kvstore.values.blocks import Block, Region, plan_reads

SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)


class Counting:
    """A shard in memory that counts how often each of its bytes is read."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.n_reads = np.zeros(len(content), int)

    def read(self, start: int, stop: int) -> memoryview:
        self.n_reads[start:stop] += 1
        return self._content[start:stop]


def shard_of(value: object) -> tuple[Shard, Counting]:
    """Return a shard as a checkpoint has it, and what is read of it."""
    source = Counting(plan(codec.encode("shard", value).parts).content())
    return Shard("shard", source.read), source


@st.composite
def regions(draw: st.DrawFn, shape: tuple[int, ...]) -> Region:
    start = [draw(st.integers(0, length)) for length in shape]
    lengths = [draw(st.integers(0, length - first)) for first, length in zip(start, shape, strict=True)]
    return Region(tuple(start), tuple(lengths))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Region], Region]:
    """Return a shape, saved regions that may overlap and leave gaps, and a wanted region."""
    shape = draw(SHAPES)
    return shape, draw(st.lists(regions(shape), max_size=6)), draw(regions(shape))


def indices(region: Region) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(part.start, part.stop) for part in region.slices())))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)


@given(layouts())
def test_each_wanted_element_is_read_once_or_missing(layout: tuple[tuple[int, ...], list[Region], Region]) -> None:
    _, saved, wanted = layout
    pieces, gaps = plan_reads(wanted, saved)

    planned = Counter(index for region in [*(piece.region for piece in pieces), *gaps] for index in indices(region))

    assert planned == Counter(indices(wanted))
    assert all(indices(piece.region) <= indices(saved[piece.source]) for piece in pieces)
    assert not any(indices(gap) & indices(region) for gap in gaps for region in saved)


@given(layouts())
def test_an_element_that_several_saved_is_read_from_the_first(
    layout: tuple[tuple[int, ...], list[Region], Region],
) -> None:
    _, saved, wanted = layout
    pieces, _ = plan_reads(wanted, saved)

    for piece in pieces:
        assert not any(indices(piece.region) & indices(region) for region in saved[: piece.source])


@given(SHAPES.filter(bool), st.integers(1, 7), st.data())
def test_parts_along_an_axis_are_numpys(shape: tuple[int, ...], parts: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    array = numbered(shape)

    for part, expected in enumerate(np.array_split(array, parts, axis=axis)):
        np.testing.assert_array_equal(array[Region.along(axis, shape, part, parts).slices()], expected)


@given(layouts(), st.sampled_from(["i4", "u1", ">f2", "c16", "S3"]))
def test_what_is_read_is_what_was_saved(layout: tuple[tuple[int, ...], list[Region], Region], dtype: str) -> None:
    shape, saved, wanted = layout
    whole = numbered(shape).astype(dtype)
    trees = []
    for rank, region in enumerate(saved):
        index: Any = (*region.slices(), ...)  # with the dots, an array where there are no axes
        trees.append(open_tree(shard_of({"weights": Block(whole[index], region, shape), "rank": rank})[0]))
    if not trees:
        return
    covered = set().union(*map(indices, saved))
    if not indices(wanted) <= covered:
        with pytest.raises(MissingElementsError) as missing:
            reshard(trees, lambda *_: wanted)
        assert all(box in str(missing.value) for box in missing.value.missing[:3])
        return

    tree = reshard(trees, lambda *_: wanted)

    np.testing.assert_array_equal(tree["weights"].data, whole[wanted.slices()])
    assert tree["weights"].data.dtype == whole.dtype
    assert tree["weights"].region == wanted
    assert tree["rank"] == 0


@given(SHAPES.filter(bool), st.integers(1, 5), st.integers(1, 5), st.data())
def test_ranks_of_another_number_read_all_that_was_split_along_an_axis_once(
    shape: tuple[int, ...], saved: int, ranks: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    whole = numbered(shape)
    shards = []
    for rank in range(saved):
        region = Region.along(axis, shape, rank, saved)
        shards.append(shard_of({"weights": Block(whole[region.slices()], region, shape), "step": 7}))

    def part(rank: int) -> Block:
        block = reshard([open_tree(shard) for shard, _ in shards], even_regions(rank, ranks))["weights"]
        assert isinstance(block, Block)
        return block

    parts = [part(rank) for rank in range(ranks)]

    is_split = any(Region.along(axis, shape, rank, saved).shape != shape for rank in range(saved))
    joined = np.concatenate([block.data for block in parts], axis=axis) if is_split else parts[-1].data
    np.testing.assert_array_equal(joined, whole)


@given(st.integers(2, 12), st.integers(2, 6), st.integers(1, 6))
def test_of_rows_no_byte_is_read_that_another_rank_wants(n_rows: int, saved: int, ranks: int) -> None:
    whole = numbered((n_rows, 1000))
    parts = [Region.along(0, whole.shape, rank, saved) for rank in range(saved)]
    shards = [shard_of({"weights": Block(whole[part.slices()], part, whole.shape)}) for part in parts]
    trees = [open_tree(shard) for shard, _ in shards]
    for _, source in shards:
        source.n_reads[:] = 0

    for rank in range(ranks):
        reshard(trees, even_regions(rank, ranks))

    assert sum(int(source.n_reads.sum()) for _, source in shards) == whole.nbytes
    assert all(source.n_reads.max() <= 1 for _, source in shards)
