"""A stand-in for CuPy where there is no GPU: that part of it which laggard uses, with CuPy 14's names and arguments.

Device memory is the host's memory, so pointers are real; its owner, size and limit are checked at every use, which a
GPU would not do. Kernels are compiled for the host and run. Time is virtual: each operation takes what the board's
:class:`~tests.fake_cupy.machine.Speed` says. The boards, and what is wrong with them, are a test's to set: see
:mod:`tests.fake_cupy.machine`.
"""

from __future__ import annotations

from numpy import add, matmul, maximum, multiply  # they come back to the arrays, which are not NumPy's

from tests.fake_cupy import cuda
from tests.fake_cupy.arrays import arange, array, asarray, empty, full, ndarray, zeros
from tests.fake_cupy.kernels import ElementwiseKernel, RawModule

__all__ = [
    "ElementwiseKernel",
    "RawModule",
    "add",
    "arange",
    "array",
    "asarray",
    "cuda",
    "empty",
    "full",
    "is_available",
    "matmul",
    "maximum",
    "multiply",
    "ndarray",
    "zeros",
]


def is_available() -> bool:
    return cuda.is_available()
