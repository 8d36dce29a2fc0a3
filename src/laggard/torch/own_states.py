"""What only one rank has, of its last two steps, in a file that outlives its process: for who takes its place."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

_HEAD = struct.Struct("<qqI")  # step, size, checksum
_SLOT_BYTES = 1 << 20


class OwnStates:
    """Random states, and the position in the data, as they were at the beginning of a step."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, 2 * _SLOT_BYTES)
            self._memory = mmap.mmap(descriptor, 2 * _SLOT_BYTES)
        finally:
            os.close(descriptor)

    def put(self, step: int, data: bytes) -> bool:
        """Keep a value in place of the one of two steps before; return whether there was room."""
        if len(data) > _SLOT_BYTES - _HEAD.size:
            return False
        at = step % 2 * _SLOT_BYTES
        head = _HEAD.pack(step, len(data), zlib.crc32(data, step))
        self._memory[at : at + len(head) + len(data)] = head + data
        return True

    def steps(self) -> tuple[int, ...]:
        """Return the steps of which there is a value; one that was being written is none."""
        found = (_HEAD.unpack_from(self._memory, at)[0] for at in (0, _SLOT_BYTES))
        return tuple(step for step in found if self._read(step) is not None)

    def get(self, step: int) -> bytes:
        """Return the value of a step; one of `steps`."""
        return self._read(step) or b""

    def _read(self, step: int) -> bytes | None:
        at = step % 2 * _SLOT_BYTES
        found, size, checksum = _HEAD.unpack_from(self._memory, at)
        data = self._memory[at + _HEAD.size : at + _HEAD.size + max(0, min(size, _SLOT_BYTES - _HEAD.size))]
        return data if data and found == step and zlib.crc32(data, step) == checksum else None
