"""CuPy's ``cupy.cuda.cublas``: one function, on the pointers that it is given."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tests.fake_cupy.cuda import runtime
from tests.fake_cupy.cuda.device import get_cublas_handle
from tests.fake_cupy.cuda.stream import get_current_stream
from tests.fake_cupy.machine import the_machine

__all__ = ["CUBLASError", "gemmEx"]

CUBLAS_OP_N = 0
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 70, 77
CUBLAS_GEMM_DEFAULT = -1

_DTYPES: dict[int, Any] = {
    runtime.CUDA_R_64F: np.float64,
    runtime.CUDA_R_32F: np.float32,
    runtime.CUDA_R_16F: np.float16,
    runtime.CUDA_R_16BF: ml_dtypes.bfloat16,
}
# The numbers of the inputs and of the product, and what is computed in; from cuBLAS's table of what it supports.
_SUPPORTED = {
    (runtime.CUDA_R_64F, runtime.CUDA_R_64F, CUBLAS_COMPUTE_64F),
    (runtime.CUDA_R_32F, runtime.CUDA_R_32F, CUBLAS_COMPUTE_32F),
    (runtime.CUDA_R_32F, runtime.CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
    (runtime.CUDA_R_16F, runtime.CUDA_R_32F, CUBLAS_COMPUTE_32F),
    (runtime.CUDA_R_16BF, runtime.CUDA_R_32F, CUBLAS_COMPUTE_32F),
}
# On an AMD GPU CuPy takes a type of numbers in the place of a compute type, and knows no bfloat16.
_SUPPORTED_BY_HIP = {
    (runtime.CUDA_R_64F, runtime.CUDA_R_64F, runtime.CUDA_R_64F),
    (runtime.CUDA_R_32F, runtime.CUDA_R_32F, runtime.CUDA_R_32F),
    (runtime.CUDA_R_16F, runtime.CUDA_R_32F, runtime.CUDA_R_32F),
}
# The last product of each size and its operands, since the probes' precisions share a few.
_last: dict[object, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = {}


class CUBLASError(RuntimeError):
    pass


def gemmEx(  # noqa: N802 - CuPy's name and arguments
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,  # noqa: N803
    Atype: int,  # noqa: N803
    lda: int,
    B: int,  # noqa: N803
    Btype: int,  # noqa: N803
    ldb: int,
    beta: int,
    C: int,  # noqa: N803
    Ctype: int,  # noqa: N803
    ldc: int,
    computeType: int,  # noqa: N803
    algo: int,
) -> None:
    """C = alpha A B + beta C, all of them by columns; alpha and beta lie in the host's memory.

    The tests' products are exact in every precision that has their operands, so that one way to compute does for all.
    """
    if get_current_stream().is_capturing():
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    if handle != get_cublas_handle():
        raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED")
    arguments = transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc, computeType, algo
    multiply(*arguments)


def multiply(
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,  # noqa: N803
    Atype: int,  # noqa: N803
    lda: int,
    B: int,  # noqa: N803
    Btype: int,  # noqa: N803
    ldb: int,
    beta: int,
    C: int,  # noqa: N803
    Ctype: int,  # noqa: N803
    ldc: int,
    computeType: int,  # noqa: N803
    algo: int,
) -> None:
    """Do what the library does."""
    supported = _SUPPORTED_BY_HIP if the_machine().is_hip else _SUPPORTED
    if Atype != Btype or (Atype, Ctype, computeType) not in supported:
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED")
    if lda < m or ldb < k or ldc < m:
        raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE")
    assert (transa, transb, algo) == (CUBLAS_OP_N, CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT)
    operands = _columns(A, Atype, m, k, lda), _columns(B, Btype, k, n, ldb)
    result = _columns(C, Ctype, m, n, ldc)
    assert not any(np.may_share_memory(operand, result) for operand in operands)
    board = the_machine().board()
    factors = _scalar(alpha, Ctype), _scalar(beta, Ctype)
    call = (A, B, C, m, n, k, lda, ldb, ldc, Atype, Ctype, *factors, board.wrong_by)
    # The same product into the same place again, with nothing done in between, changes nothing.
    if factors[1] or board.last_product != (call, len(board.log)):
        left, right = (operand.astype(result.dtype) for operand in operands)
        kept = factors[1] * result if factors[1] else None
        np.multiply(_product(left, right), factors[0], out=result)
        if kept is not None:
            result += kept
        result[m // 3, n // 2] += board.wrong_by
    board.works("gemm", get_current_stream(), 2.0 * m * n * k / board.speed.flop_s, *operands, result)
    board.last_product = call, len(board.log)


def _columns(pointer: int, kind: int, rows: int, columns: int, leading: int) -> NDArray[Any]:
    dtype = np.dtype(_DTYPES[kind])
    numbers = (columns - 1) * leading + rows
    raw = the_machine().board().memory_at(pointer, numbers * dtype.itemsize)
    return as_strided(raw.view(dtype), (rows, columns), (dtype.itemsize, leading * dtype.itemsize))


def _scalar(pointer: int, kind: int) -> float:
    return (ctypes.c_double if kind == runtime.CUDA_R_64F else ctypes.c_float).from_address(pointer).value


def _product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    size = left.shape, right.shape, left.dtype
    last = _last.get(size)
    if last is None or not (np.array_equal(last[0], left) and np.array_equal(last[1], right)):
        last = _last[size] = left, right, left @ right
    return last[2]
