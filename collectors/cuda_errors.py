"""Which errors of CUDA speak of a broken device, and which of memory that is short.

All others have their reason elsewhere: a library that is missing or does not match the driver, memory that others hold,
a mistake in the code.
"""

from __future__ import annotations

# By the type's name, since CuPy need not be there. The codes are those of CUDA's driver_types.h and of cublas_api.h.
_CUDA = {
    46,  # busy or unavailable
    214,  # an uncorrectable error of its memory
    220,  # an uncorrectable error of NVLink
    702,  # a kernel did not end
    714,  # its call stack is broken
    715,  # an illegal instruction
    719,  # a kernel failed
    721,  # an error that was contained
    802,  # its fabric is not up
    999,  # unknown
}
_OF_THE_DEVICE = {
    "CUDARuntimeError": _CUDA,
    "CUDADriverError": _CUDA,
    "CUBLASError": {13},  # a product could not be run
}
_OUT_OF_MEMORY = {"CUDARuntimeError": {2}, "CUDADriverError": {2}, "CUBLASError": {3}}


def is_of_the_device(error: BaseException) -> bool:
    """Return whether an error that CuPy raised speaks of a broken device."""
    return getattr(error, "status", None) in _OF_THE_DEVICE.get(type(error).__name__, ())


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is short: CuPy's own is a ``MemoryError``, that of a library is not."""
    if isinstance(error, MemoryError):
        return True
    return getattr(error, "status", None) in _OUT_OF_MEMORY.get(type(error).__name__, ())
