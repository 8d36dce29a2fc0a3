"""What a shard looks like as one range of bytes: the header of its tree, then its leaves; and its checksums. Pure.

The header (:mod:`laggard.kvstore.values.codec`) says how long the leaves are.  Each begins at a multiple of 64 bytes,
so that arrays can be used where they lie.  Checksums are those of blocks of a fixed size, so that a part of a shard can
be verified without the rest; they are kept beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from laggard.kvstore.values.decoding import Buffer

BLOCK_BYTES = 4 << 20  # what a partial read fetches at least: docs/checkpoints.md
_ALIGNMENT = 64  # a cache line, and what NumPy and PyTorch align arrays to
_SUM_BYTES = 8  # of an XXH3 of 64 bits


class LeafDigests:
    """Digests of the memory of leaves; those of large ones that a save has copied need not be read again for them."""

    def __init__(self) -> None:
        # By address and size. The memory is kept, so that nothing else can be there.
        self._known: dict[tuple[int, int], tuple[Buffer, bytes]] = {}

    def note(self, leaf: Buffer, digest: bytes) -> None:
        """Note what the digest of a leaf is."""
        self._known[_place(leaf)] = leaf, digest

    def of(self, leaf: Buffer) -> bytes:
        """Return the digest of a leaf, which is read if its digest is not known."""
        found = self._known.get(_place(leaf))
        return xxh3_64_digest(leaf) if found is None else found[1]


def _place(memory: Buffer) -> tuple[int, int]:
    return np.frombuffer(memory, np.uint8).ctypes.data, len(memory)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each part of a shard goes."""

    parts: tuple[tuple[int, Buffer], ...]  # offset and content of each part
    size_bytes: int  # of the whole shard
    digests: LeafDigests | None = None  # where those of its large parts are to be noted

    def content(self) -> memoryview:
        """Return the whole shard, as a copy of its parts."""
        content = bytearray(self.size_bytes)
        for _, target, source in self.within(0, np.frombuffer(content, np.uint8)):
            np.copyto(target, source)
        return memoryview(content)

    def within(
        self, start: int, target: NDArray[np.uint8]
    ) -> Iterator[tuple[Buffer, NDArray[np.uint8], NDArray[np.uint8]]]:
        """Yield each part in a range of the shard, where in the target to copy what is of it there, and this."""
        stop = start + target.size
        first = max(0, bisect_right(self.parts, start, key=lambda part: part[0]) - 1)
        for at, part in islice(self.parts, first, None):
            if at >= stop:
                break
            source = np.frombuffer(part, np.uint8)[max(0, start - at) : stop - at]
            offset = max(0, at - start)
            yield part, target[offset : offset + source.size], source


def plan(parts: Iterable[Buffer], digests: LeafDigests | None = None) -> Plan:
    """Lay out the parts of an encoded value."""
    placed: list[tuple[int, Buffer]] = []
    end = 0
    for part in parts:
        placed.append((aligned(end), part))
        end = aligned(end) + len(part)
    return Plan(tuple(placed), end, digests)


def aligned(offset: int) -> int:
    """Return where a part begins that comes after this offset."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def blocks_of(content: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of a shard, or of a range of one that begins where a block does."""
    for at in range(0, content.nbytes, BLOCK_BYTES):
        yield content[at : at + BLOCK_BYTES]


def sums_of(content: memoryview) -> bytes:
    """Return the checksum of each block of a shard, one after the other."""
    return b"".join(map(xxh3_64_digest, blocks_of(content)))


def digest(sums: bytes) -> int:
    """Return one checksum of all checksums, which State keeps."""
    return int(xxh3_64_intdigest(sums))


def block_range(start: int, stop: int, size_bytes: int) -> tuple[int, int]:
    """Return where the blocks begin and end that a range of bytes lies in."""
    end = -(-stop // BLOCK_BYTES) * BLOCK_BYTES
    return start // BLOCK_BYTES * BLOCK_BYTES, min(end, size_bytes)


def wrong_block(sums: bytes, start: int, content: memoryview) -> int | None:
    """Return the offset of the first block of a range that does not match its checksum, or None."""
    for number, block in enumerate(blocks_of(content), start // BLOCK_BYTES):
        if sums[number * _SUM_BYTES : (number + 1) * _SUM_BYTES] != xxh3_64_digest(block):
            return number * BLOCK_BYTES
    return None
