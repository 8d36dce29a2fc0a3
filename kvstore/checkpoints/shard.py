"""One rank's shard of a checkpoint, as a program reads it: whole, or leaf by leaf."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, aligned, digest, wrong_block
from laggard.kvstore.values.blocks import Block
from laggard.kvstore.values.decoding import MakeBlock, MakeView, Value, leaf_bytes, leaf_of, naming_errors, rebuild
from laggard.kvstore.values.tensors import view_of

_MAX_THREADS = 8  # as fast as memory is read
_LENGTH_BYTES = 4  # of the header's length

PlacedLeaf = Callable[[str, Any, int, int], Value]
"""Returns the value of a leaf, given its kind, its description, and the range of the shard in which its bytes are."""


class Shard:
    """A shard, leaf by leaf."""

    def __init__(self, key: str, read: Callable[[int, int], memoryview]) -> None:
        self._key = key  # its key, named in errors
        self._read = read  # returns a range of its bytes, as private memory
        with naming_errors(key):
            self._leaves_at = _LENGTH_BYTES + int.from_bytes(read(0, _LENGTH_BYTES), "little")
            self._described = json.loads(bytes(read(_LENGTH_BYTES, self._leaves_at)))

    @classmethod
    def whole(cls, key: str, content: memoryview) -> Self:
        """Return a shard that is mapped into memory, privately."""
        return cls(key, lambda start, stop: content[start:stop])

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of its bytes: private memory that may be written to."""
        return self._read(start, stop) if start < stop else memoryview(bytearray())

    def value(self) -> Value:
        """Return the tree that was saved, whose arrays lie where they were read."""
        return self.tree(lambda kind, content, start, stop: leaf_of(kind, content, self.read(start, stop)))

    def tree(self, leaf: PlacedLeaf, block: MakeBlock = Block, view: MakeView = view_of) -> Value:
        """Return the tree that was saved, given what makes its leaves, blocks and views."""
        end = self._leaves_at

        def placed(kind: str, content: Any) -> Value:
            nonlocal end
            start = aligned(end)
            end = start + leaf_bytes(kind, content)
            return leaf(kind, content, start, end)

        with naming_errors(self._key):
            return rebuild(self._described, placed, block, view)


def verify_whole(content: memoryview, sums: bytes, expected: int | None) -> str:
    """Verify a whole shard with several threads; return what is wrong, empty if nothing is."""
    if expected is not None and digest(sums) != expected:
        return "its checksums are not those that State knows"
    n_blocks = -(-content.nbytes // BLOCK_BYTES)
    n_threads = max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)), n_blocks))
    per_thread = -(-n_blocks // n_threads) * BLOCK_BYTES

    def verify(start: int) -> int | None:
        return wrong_block(sums, start, content[start : start + per_thread])

    with ThreadPoolExecutor(n_threads, "verify") as threads:
        wrong = [at for at in threads.map(verify, range(0, content.nbytes, per_thread)) if at is not None]
    return f"the block at byte {wrong[0]} does not match its checksum" if wrong else ""
