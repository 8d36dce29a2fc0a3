"""cuBLAS, called directly while a CUDA graph is captured: CuPy refuses that, though the library supports it."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

# cublas_api.h, cublasGemmEx: two transpositions and three sizes, a factor, two matrices, a factor, the product, how.
_MATRIX = (c_void_p, c_int, c_int)
_GEMM_EX = (*(c_int,) * 5, c_void_p, *_MATRIX, *_MATRIX, c_void_p, *_MATRIX, c_int, c_int)


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

    def gemm_ex(self, *arguments: int) -> None:
        """Multiply, with the arguments of CuPy's gemmEx; pointers are integers, those of the factors are the host's."""
        typed = [kind(each) for kind, each in zip(_GEMM_EX, arguments, strict=True)]
        _check("cublasGemmEx", self._library.cublasGemmEx(self._handle, *typed))


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
