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
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_FALLOC_FL_KEEP_SIZE = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)


def populate(mapping: mmap.mmap, start: int, stop: int) -> None:
    """Have the memory of a range, and have it mapped. Other threads run meanwhile."""
    # It is in huge pages where the file system allows that.
    with suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE, start, stop - start)
    address = np.frombuffer(mapping, np.uint8).ctypes.data  # without the GIL, which mmap.madvise keeps
    _call(_libc.madvise(address + start, stop - start, _MADV_POPULATE_WRITE))


def allocate(descriptor: int, mapping: mmap.mmap, start: int, stop: int) -> None:
    """Have the memory of a range of a file, on old kernels without clearing it."""
    try:
        populate(mapping, start, stop)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The file keeps its size, if somebody has shortened it meanwhile.
        _call(_libc.fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, start, stop - start))


def _call(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        if number == errno.EFAULT:
            number = errno.ENOSPC
        raise OSError(number, os.strerror(number))
