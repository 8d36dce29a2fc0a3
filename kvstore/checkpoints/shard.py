"""One rank's shard of a checkpoint, as a program reads it: whole, or piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from laggard.kvstore.checkpoints.layout import (
    BLOCK_BYTES,
    FOOTER_BYTES,
    digest,
    index_range,
    parse_index,
    wrong_block,
)
from laggard.kvstore.errors import CorruptValueError
from laggard.kvstore.values.codec import decode_in_place
from laggard.kvstore.values.decoding import Value

HEADER = "header"
_MAX_THREADS = 8  # as fast as memory is read


class Shard:
    """A shard, piece by piece. Use it in a ``with`` block, or close it."""

    def __init__(self, key: str, size_bytes: int, read: Callable[[int, int], memoryview]) -> None:
        self._key = key  # its key, named in errors
        self._read = read  # returns a range of its bytes, as private memory
        try:
            footer = read(size_bytes - FOOTER_BYTES, size_bytes)
            self._places = parse_index(read(*index_range(footer, size_bytes)))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptValueError(key, f"its index cannot be read: {error!r}") from error
        # Size of each piece in bytes, by name: `header` (what the codec says of the tree) and `0`, `1`, ... (the bytes
        # of its arrays and long texts, in the header's order)
        self.sizes: Mapping[str, int] = {name: size for name, (_, size) in self._places.items()}

    @classmethod
    def whole(cls, key: str, content: memoryview) -> Self:
        """Return a shard that is mapped into memory, privately."""
        return cls(key, content.nbytes, lambda start, stop: content[start:stop])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no more; what was read stays valid."""
        self._read = lambda *_: memoryview(b"")  # so that what is mapped goes with what was read of it

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        """Return a piece, or a range of its bytes: private memory that may be written to."""
        at, size = self._places[name]
        stop = size if stop is None else min(stop, size)
        return self._read(at + start, at + stop) if start < stop else memoryview(bytearray())

    def value(self) -> Value:
        """Return the tree that was saved, whose arrays lie where they were read."""
        leaves = (self.read(name) for name in self._places if name != HEADER)
        return decode_in_place(self._key, self.read(HEADER), leaves)


def verify_whole(content: memoryview, sums: bytes, expected: int | None) -> str:
    """Verify a whole shard with several threads; return what is wrong, empty if nothing is."""
    if expected is not None and digest(sums) != expected:
        return "its checksums are not those that State knows"
    n_blocks = -(-content.nbytes // BLOCK_BYTES)
    n_threads = max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)), n_blocks))
    per_thread = -(-n_blocks // n_threads) * BLOCK_BYTES

    def verify(start: int) -> int | None:
        stop = min(start + per_thread, content.nbytes)
        blocks = (content[at : min(at + BLOCK_BYTES, stop)] for at in range(start, stop, BLOCK_BYTES))
        return wrong_block(sums, start, blocks)

    with ThreadPoolExecutor(n_threads, "verify") as threads:
        wrong = [at for at in threads.map(verify, range(0, content.nbytes, per_thread)) if at is not None]
    return f"the block at byte {wrong[0]} does not match its checksum" if wrong else ""
