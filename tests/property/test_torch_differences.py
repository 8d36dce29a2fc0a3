"""What several ranks hold is stored once and comes back to each, and what they hold differently is named."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

from laggard.kvstore.checkpoints.layout import LeafDigests, plan  # noqa: E402 - what follows needs PyTorch
from laggard.kvstore.checkpoints.mappings import write_parts  # noqa: E402
from laggard.kvstore.checkpoints.resharding import open_tree, read_whole  # noqa: E402
from laggard.kvstore.checkpoints.shard import Shard  # noqa: E402
from laggard.kvstore.values.codec import encode  # noqa: E402
from laggard.torch import differences  # noqa: E402
from laggard.torch.differences import Division, divide, filled, leaves_of, store  # noqa: E402

A, B, C = ("a",), ("b",), ("c", 0)
DEADLINE_S = 60.0
LARGE_BYTES = 1 << 20


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([{A: 1}, {A: 1}], [({A: 0}, (), True), ({A: 0}, (), True)]),
        ([{A: 1, B: 2}, {B: 2, A: 1}], [({A: 0, B: 0}, (), True), ({A: 0, B: 0}, (), False)]),
        ([{A: 1, B: 2}, {A: 1, B: 3}], [({A: 0, B: 0}, (B,), True), ({A: 0, B: 1}, (B,), False)]),
        ([{A: 1}, {B: 1}], [({A: 0}, (), True), ({B: 1}, (), False)]),
        ([{A: 1}, {A: 1, C: 5}], [({A: 0}, (), True), ({A: 0, C: 1}, (), False)]),
        ([{A: 1, C: 5}, {A: 1}], [({A: 0, C: 0}, (), True), ({A: 0}, (), False)]),
        (
            [{A: 1, B: 7}, {A: 1, B: 8}, {A: 1, B: 8}],
            [({A: 0, B: 0}, (B,), True), ({A: 0, B: 1}, (B,), False), ({A: 0, B: 1}, (B,), False)],
        ),
        ([{}, {}], [({}, (), True), ({}, (), True)]),
    ],
)
def test_a_leaf_is_held_by_the_lowest_rank_that_has_it_and_differs_where_two_ranks_disagree(
    ranks: Sequence[differences.Digests], expected: list[tuple[Any, ...]]
) -> None:
    assert [divide(ranks, rank) for rank in range(len(ranks))] == [Division(*each) for each in expected]


def together(
    trees: Sequence[Any], of_first: Sequence[tuple[Any, ...]] = (), fails: int | None = None
) -> list[dict[str, Any]]:
    """Return what each of several ranks stores, which are threads here; the one that fails has no room for it."""
    slots: list[Any] = [None] * len(trees)
    barrier = threading.Barrier(len(trees), timeout=DEADLINE_S)

    def stored(rank: int) -> dict[str, Any]:
        def exchange(own: differences.Digests) -> list[differences.Digests]:
            slots[rank] = own
            barrier.wait()
            found = list(slots)
            barrier.wait()
            return found

        saved: list[dict[str, Any]] = []

        def save(parts: dict[str, Any], digests: LeafDigests | None) -> None:
            copy(parts, digests)
            saved.append(parts)
            if rank == fails:
                raise MemoryError

        with contextlib.suppress(MemoryError):
            store(trees[rank], rank, exchange, of_first, save)
        (parts,) = saved
        return parts

    with ThreadPoolExecutor(len(trees)) as threads:
        return list(threads.map(stored, range(len(trees))))


def copy(parts: dict[str, Any], digests: LeafDigests | None) -> None:
    """Copy what a rank saves into memory of its node."""
    descriptor = os.memfd_create("shard")
    write_parts(plan(encode("key", parts).parts, digests), descriptor, None, 0)
    os.close(descriptor)


def restored(stored: Sequence[dict[str, Any]], rank: int) -> Any:
    """Return the state of a rank, read back from bytes."""
    shards = [open_tree(Shard.whole("key", plan(encode("key", each).parts).content())) for each in stored]
    return read_whole(filled(shards[rank] if shards[rank] else shards[0], shards.__getitem__))


def bits(leaf: Any) -> bytes:
    return encode("key", leaf).joined()


def tensor(value: int, size: int) -> Any:
    """Return a tensor whose first elements are zeros: most of them are alike in their samples."""
    made = torch.zeros(size, dtype=torch.uint8)
    made[-1:] = value
    return made


LEAVES = st.one_of(
    st.integers(0, 2), st.just(""), st.builds(tensor, st.integers(0, 2), st.sampled_from([0, 9, 5000, LARGE_BYTES]))
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", 3]), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@given(st.lists(st.fixed_dictionaries({"model": TREES, "more": TREES}), min_size=2, max_size=4))
def test_each_rank_gets_back_what_it_had_and_what_is_large_is_stored_once(trees: list[Any]) -> None:
    stored = together(trees)
    for rank, tree in enumerate(trees):
        assert bits(restored(stored, rank)) == bits(tree)

    large = [
        (p, bits(x))
        for each in stored
        for p, x in leaves_of(each.get("state", {}))
        if differences.nbytes_of(x) == LARGE_BYTES
    ]
    assert len(set(large)) == len(large)
    assert set(large) == {
        (p, bits(x)) for tree in trees for p, x in leaves_of(tree) if differences.nbytes_of(x) == LARGE_BYTES
    }

    values: dict[Any, set[bytes]] = {}
    for path, leaf in (each for tree in trees for each in leaves_of(tree)):
        values.setdefault(path, set()).add(bits(leaf))
    named = {tuple(path) for each in stored for path in each.get("differing", ())}
    assert named == {path for path, found in values.items() if len(found) > 1}


def test_a_rank_that_has_what_the_first_has_stores_nothing() -> None:
    trees = [{"model": {"weight": torch.ones(4, 5), "steps": 3}} for _ in range(3)]
    assert [bool(each) for each in together(trees)] == [True, False, False]


def test_a_first_rank_that_cannot_save_keeps_none_of_the_others_waiting() -> None:
    trees = [{"model": {"weight": tensor(rank, 5000)}} for rank in (0, 1)]
    assert together(trees, fails=0) == together(trees)


def test_a_leaf_of_the_first_rank_counts_for_all_whatever_they_hold() -> None:
    trees = [{"model": {"mean": tensor(rank, 9)}} for rank in range(2)]
    first, second = together(trees, [("model", "mean"), ("model", "not saved")])
    assert second == {}
    assert first["differing"] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda leaf: leaf.double(),
        lambda leaf: leaf.view(8, 4),
        lambda leaf: leaf.flip(0),
        lambda leaf: -leaf,
        lambda leaf: leaf.permute(1, 0).contiguous().permute(1, 0),
        lambda leaf: leaf.numpy(),
        lambda leaf: leaf.tolist(),
    ],
)
def test_leaves_that_are_not_the_same_to_the_last_bit_and_in_their_kind_differ(change: Callable[[Any], Any]) -> None:
    leaf = torch.arange(32.0).view(4, 8)
    first, second = together([{"model": {"w": leaf}}, {"model": {"w": change(leaf)}}])
    assert second["differing"] == [["model", "w"]]
    assert bits(restored([first, second], 1)["model"]["w"]) == bits(change(leaf))
