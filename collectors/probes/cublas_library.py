"""cuBLAS, called directly while a CUDA graph is captured: CuPy refuses that, though the library supports it."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any


class CapturedCublas:
    """A cuBLAS handle of our own, for products that are captured."""

    def __init__(self) -> None:
        self._library = loaded_cublas()
        self._handle = c_void_p()
        _check("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(self._handle)))

    def use(self, stream: int, workspace: int, workspace_bytes: int) -> None:
        """Run the next products in a stream, in given memory: the library's own would become part of the graph."""
        _check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, c_void_p(stream)))
        set_workspace = self._library.cublasSetWorkspace_v2
        _check("cublasSetWorkspace", set_workspace(self._handle, c_void_p(workspace), c_size_t(workspace_bytes)))

    # The library's names and order, as in CuPy's gemmEx.
    def gemm_ex(
        self,
        transa: int,
        transb: int,
        m: int,
        n: int,
        k: int,
        alpha: int,
        left: int,
        left_type: int,
        left_leading: int,
        right: int,
        right_type: int,
        right_leading: int,
        beta: int,
        result: int,
        result_type: int,
        result_leading: int,
        compute_type: int,
        algorithm: int,
    ) -> None:
        """Multiply; pointers are integers, and those of ``alpha`` and ``beta`` are the host's."""
        sizes = [c_int(number) for number in (transa, transb, m, n, k)]
        operands = [
            part
            for pointer, kind, leading in ((left, left_type, left_leading), (right, right_type, right_leading))
            for part in (c_void_p(pointer), c_int(kind), c_int(leading))
        ]
        product = c_void_p(result), c_int(result_type), c_int(result_leading), c_int(compute_type), c_int(algorithm)
        arguments = *sizes, c_void_p(alpha), *operands, c_void_p(beta), *product
        _check("cublasGemmEx", self._library.cublasGemmEx(self._handle, *arguments))


def loaded_cublas() -> Any:
    """Return the library that CuPy has loaded into this process, wherever it found it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libcublas.so"):
            return ctypes.CDLL(str(path))
    raise OSError("cuBLAS is not loaded")


def _check(function: str, status: int) -> None:
    if status != 0:
        raise RuntimeError(f"{function} failed with status {status}")
