"""cuBLAS's library, called past CuPy."""

from __future__ import annotations

import pytest

from laggard.collectors.device import GpuDevice
from laggard.collectors.probes import cublas_library
from tests.fake_cupy.kernels import host_compiler
from tests.fake_cupy.machine import Board, cupy_on


def test_cublas_is_what_the_process_has_loaded() -> None:
    with pytest.raises(OSError, match="cuBLAS is not loaded"):
        cublas_library.loaded_cublas()


@pytest.mark.skipif(host_compiler() is None, reason="there is no C++ compiler")
def test_a_status_of_cublas_is_an_error_with_the_functions_name() -> None:
    with cupy_on(Board()):
        GpuDevice("0", 0)
        cublas = cublas_library.CapturedCublas()
        with pytest.raises(RuntimeError, match="cublasGemmEx failed with status 1"):
            cublas.gemm_ex(*[1] * 18)
