"""Memory for a file before anybody writes to it, so that whoever does need not wait for the kernel to clear it.

The bytes of the file stay as they are: somebody else may write to it meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import suppress

import numpy as np

# How much at a time: a few milliseconds.
SLICE_BYTES = 8 << 20
MADV_POPULATE_WRITE = 23  # of Linux 5.14, madvise(2); the mmap module does not know it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(descriptor: int, mapping: mmap.mmap, start: int, stop: int, advice: int = MADV_POPULATE_WRITE) -> None:
    """Have the memory of a range of a file, and have it mapped. Other threads run meanwhile."""
    # It is in huge pages where the file system allows that.
    with suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE, start, stop - start)
    address = np.frombuffer(mapping, np.uint8).ctypes.data  # without the GIL, which mmap.madvise keeps
    if _libc.madvise(address + start, stop - start, advice):
        number = ctypes.get_errno()
        if number == errno.EINVAL:  # an older kernel
            os.posix_fallocate(descriptor, start, stop - start)
        else:  # EFAULT stands for a write that would end the process
            number = errno.ENOSPC if number == errno.EFAULT else number
            raise OSError(number, os.strerror(number))
