"""One file of a node's memory, which has no name."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, blocks_of
from laggard.kvstore.checkpoints.populate import populate
from laggard.kvstore.values.decoding import Buffer

# Shards of one program differ by the length of a number in their header; their files do not.
_GRAIN_BYTES = 1 << 20


def whole_grains(size_bytes: int) -> int:
    """Return how much memory a shard of this size gets."""
    return -(-size_bytes // _GRAIN_BYTES) * _GRAIN_BYTES


def write_at(descriptor: int, offset: int, content: Buffer) -> None:
    """Write all of a part to a file."""
    view = memoryview(content)
    while view.nbytes:
        count = os.pwrite(descriptor, view[:BLOCK_BYTES], offset)
        offset, view = offset + count, view[count:]


@dataclass(eq=False, slots=True)
class ShardFile:
    """A file without a name."""

    # Tells it from all others, those of another server included. What has memory under one number keeps it
    number: int
    descriptor: int  # open for reading and writing
    owner: str  # who wrote it last, or is going to; whoever wrote a file may still have it mapped
    size_bytes: int = 0  # size of the shard in it; 0: nobody has written to it yet
    reserved_bytes: int = 0  # size of the file
    is_lent: bool = False  # whether a program may have it mapped to read it; then it is never written again
    readers: int = 0  # how many threads of this process are reading it
    is_over: bool = False  # whether it goes back as soon as they are done
    ready_bytes: int = 0  # how much of it has memory for sure; to touch the rest ends the process if there is none left
    _mapping: mmap.mmap | None = None  # kept, since to map memory again costs as much as to copy it

    def content(self) -> memoryview:
        """Return the shard in it, for as long as it is neither written to nor made shorter."""
        return self._mapped().toreadonly()

    def to_fill(self) -> Iterator[memoryview]:
        """Yield the blocks of the shard that it is to hold, each of which has its memory by then."""
        start = 0
        for block in blocks_of(self._mapped()):
            stop = start + block.nbytes
            if self._mapping is not None and self.ready_bytes < stop:
                populate(self.descriptor, self._mapping, start, stop)
                self.ready_bytes = stop
            yield block
            start = stop

    def resize(self, reserved_bytes: int) -> None:
        """Make it shorter or longer."""
        if reserved_bytes != self.reserved_bytes:
            os.ftruncate(self.descriptor, reserved_bytes)
            self._mapping = None
        self.reserved_bytes, self.ready_bytes = reserved_bytes, min(self.ready_bytes, reserved_bytes)

    def close(self) -> None:
        """Free its memory, also if a program has it mapped to write to it, unless one may read it."""
        self._mapping = None
        if not self.is_lent:
            os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)

    def _mapped(self) -> memoryview:
        if self._mapping is None:
            self._mapping = mmap.mmap(self.descriptor, self.reserved_bytes)
        return memoryview(self._mapping)[: self.size_bytes]
