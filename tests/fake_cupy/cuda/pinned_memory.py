"""CuPy's ``cupy.cuda.pinned_memory``."""

from __future__ import annotations

import numpy as np

from tests.fake_cupy.machine import the_machine

__all__ = ["PinnedMemoryPointer", "alloc_pinned_memory"]


class PinnedMemoryPointer:
    """Pinned memory of the host."""

    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)
        self.ptr, self.size = self.bytes.ctypes.data, size
        the_machine().pinned.add(self)


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    the_machine().board().used()
    return PinnedMemoryPointer(size)
