"""What a shard looks like as one range of bytes: named pieces, then an index of them; and its checksums. Pure.

::

    piece | padding | piece | padding | ... | index (JSON) | offset and length of the index (two times 8 bytes)

Pieces begin at multiples of 64 bytes, so that arrays can be used where they lie.  Checksums are those of blocks of a
fixed size, so that a part of a shard can be verified without the rest; they are kept beside it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from laggard.kvstore.values.decoding import Buffer

BLOCK_BYTES = 4 << 20  # what a partial read fetches at least: docs/checkpoints.md
_ALIGNMENT = 64  # a cache line, and what NumPy and PyTorch align arrays to
_FOOTER = struct.Struct("<QQ")
FOOTER_BYTES = _FOOTER.size
_SUM_BYTES = 4  # of a CRC-32


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each part of a shard goes."""

    parts: tuple[tuple[int, Buffer], ...]  # offset and content of each part, the index included
    size_bytes: int  # of the whole shard

    def content(self) -> memoryview:
        """Return the whole shard, as a copy of its parts."""
        content = memoryview(bytearray(self.size_bytes))
        for at, part in self.parts:
            content[at : at + len(part)] = part
        return content


def plan(pieces: Iterable[tuple[str, Buffer]]) -> Plan:
    """Lay out the pieces of a shard."""
    parts: list[tuple[int, Buffer]] = []
    places = []
    at = 0
    for name, content in pieces:
        view = memoryview(content).cast("B") if memoryview(content).nbytes else memoryview(b"")
        places.append([name, at, view.nbytes])
        parts.append((at, view))
        at = _aligned(at + view.nbytes)
    index = json.dumps(places, separators=(",", ":")).encode()
    parts.append((at, index + _FOOTER.pack(at, len(index))))
    return Plan(tuple(parts), at + len(index) + FOOTER_BYTES)


def index_range(footer: Buffer, size_bytes: int) -> tuple[int, int]:
    """Return where the index begins and ends, from the last bytes of a shard."""
    start, length = _FOOTER.unpack(footer)
    if start + length + FOOTER_BYTES != size_bytes:
        raise ValueError("its index is not where it should be")
    return start, start + length


def parse_index(text: Buffer) -> dict[str, tuple[int, int]]:
    """Return offset and size of each piece in bytes, by name, in the order in which they were saved."""
    return {str(name): (int(at), int(size)) for name, at, size in json.loads(bytes(text))}


def sums_of(size_bytes: int, read: Callable[[int, int], Buffer]) -> bytes:
    """Return the CRC-32 of each block of a shard, one after the other; ``read(start, stop)`` returns its bytes."""
    return b"".join(_sum_of(read(start, stop)) for start, stop in _blocks(0, size_bytes, size_bytes))


def digest(sums: bytes) -> int:
    """Return one checksum of all checksums, which State keeps."""
    return zlib.crc32(sums)


def block_range(start: int, stop: int, size_bytes: int) -> tuple[int, int]:
    """Return where the blocks begin and end that a range of bytes lies in."""
    end = -(-stop // BLOCK_BYTES) * BLOCK_BYTES
    return start // BLOCK_BYTES * BLOCK_BYTES, min(end, size_bytes)


def wrong_block(sums: bytes, start: int, blocks: Sequence[Buffer] | Iterator[Buffer]) -> int | None:
    """Return the offset of the first of some blocks that does not match its checksum, or None."""
    for number, block in enumerate(blocks, start // BLOCK_BYTES):
        if sums[number * _SUM_BYTES : (number + 1) * _SUM_BYTES] != _sum_of(block):
            return number * BLOCK_BYTES
    return None


def _sum_of(block: Buffer) -> bytes:
    return zlib.crc32(block).to_bytes(_SUM_BYTES, "little")


def _blocks(start: int, stop: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, BLOCK_BYTES):
        yield at, min(at + BLOCK_BYTES, size_bytes)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
