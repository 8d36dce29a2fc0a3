"""Matrices of -1, 0 and 1, whose product is exact, so that any wrong result of a GEMM is detected.

A sum of ``n`` products of such numbers is an integer of magnitude at most ``n``. It is exact in any order of summation
and in every precision that represents the integers up to ``n``: single precision does up to 2^24.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MULTIPLIER = np.uint32(2654435761)  # Knuth's for multiplicative hashing: 2^32 divided by the golden ratio
_SEED_STEP = 40503


def pattern(n: int, seed: int, module: Any = np) -> Any:
    """Return an ``n`` by ``n`` matrix of -1, 0 and 1 in int8, the same on every device."""
    mixed = module.arange(n * n, dtype=np.uint32)  # in place from here on: the GPU may be short of memory
    mixed += np.uint32(seed * _SEED_STEP)
    mixed *= _MULTIPLIER
    mixed ^= mixed >> np.uint32(15)
    mixed %= np.uint32(3)
    numbers = mixed.astype(np.int8)
    numbers -= np.int8(1)
    return numbers.reshape(n, n)


def weights(n: int, module: Any = np) -> Any:
    """Return ``n`` weights of 1, 2 and 3, in single precision: none is 0, so every column counts."""
    return (module.arange(n) % 3 + 1).astype(np.float32)


def wrong_rows(left: Any, right: Any, product: Any, module: Any = np) -> int:
    """Return in how many rows the product of two patterns is wrong."""
    # Compares `product w` with `left (right w)` for fixed weights `w`, after Freivalds ("Probabilistic machines can use
    # less running time", 1977): n^2 operations, where recomputing the product takes n^3. All numbers are integers of at
    # most 3 n^2, so the comparison is exact in single precision for n up to 2364.
    w = weights(len(product), module).astype(product.dtype)
    expected = _times(left, _times(right, w))
    return int((~(_times(product, w) == expected)).sum())  # a NaN equals nothing, so it counts as wrong


def _times(matrix: Any, vector: Any) -> Any:
    # Not "@": CuPy would run that on the library and the units under test, in a precision that the job's environment
    # sets (CUPY_TF32).
    return (matrix * vector).sum(axis=1)
