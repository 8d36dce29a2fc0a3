"""A shard as bytes: arrays lie where they can be used, and whatever is changed is noticed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, block_range, digest, plan, sums_of, wrong_block
from laggard.kvstore.checkpoints.shard import Shard, verify_whole
from laggard.kvstore.errors import CorruptValueError
from laggard.kvstore.values.codec import encode


def test_a_tree_lies_where_it_was_read_and_may_be_changed() -> None:
    tree = {
        "a": np.arange(100_000, dtype=np.float32).reshape(100, 1000),
        "t": "x" * 2000,
        "b": b"y" * 3,
        "e": np.empty(0),
    }
    shard = Shard.whole("k", plan(encode("k", tree).parts).content())
    back = shard.value()
    assert (back["a"] == tree["a"]).all()
    assert (back["t"], back["b"], back["e"].shape) == (tree["t"], tree["b"], (0,))
    back["a"][0, 0] = 7
    assert shard.value()["a"][0, 0] == 7  # it is the same memory


def test_arrays_are_aligned_whatever_lies_before_them() -> None:
    planned = plan([b"x" * 13, b"", b"y" * 100])
    assert [at % 64 for at, _ in planned.parts] == [0, 0, 0]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 1, (0, BLOCK_BYTES)),
        (BLOCK_BYTES - 1, BLOCK_BYTES + 1, (0, 2 * BLOCK_BYTES)),
        (BLOCK_BYTES, 2 * BLOCK_BYTES, (BLOCK_BYTES, 2 * BLOCK_BYTES)),
        (2 * BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 3, (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 9)),
    ],
)
def test_blocks_of_a_range(start: int, stop: int, expected: tuple[int, int]) -> None:
    assert block_range(start, stop, 2 * BLOCK_BYTES + 9) == expected


@pytest.mark.parametrize("seed", range(5))
def test_any_changed_byte_is_noticed(seed: int) -> None:
    chance = random.Random(seed)
    content = memoryview(bytearray(chance.randbytes(2 * BLOCK_BYTES + 100)))
    sums = sums_of(content)
    assert verify_whole(content, sums, digest(sums)) == ""
    at = chance.randrange(content.nbytes)
    content[at] ^= 1 << chance.randrange(8)
    block = at // BLOCK_BYTES * BLOCK_BYTES
    assert verify_whole(content, sums, digest(sums)) == f"the block at byte {block} does not match its checksum"
    assert wrong_block(sums, block, content[block:]) == block


def test_other_checksums_are_noticed() -> None:
    content = memoryview(bytearray(100))
    sums = sums_of(content)
    assert "not those that State knows" in verify_whole(content, sums, digest(sums) ^ 1)
    assert verify_whole(content, b"", digest(b"")) != ""


@pytest.mark.parametrize("content", [b"", bytes(100), b"\xff" * 100])
def test_what_is_no_shard_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptValueError, match="its header cannot be read"):
        Shard.whole("k", memoryview(content))
