"""The functions of cuBLAS's library that laggard calls past CuPy, with arguments as ``ctypes`` passes them."""

from __future__ import annotations

from typing import Any

from tests.fake_cupy.cuda import cublas
from tests.fake_cupy.cuda.stream import get_current_stream
from tests.fake_cupy.machine import the_machine

__all__ = ["FakeCublasLibrary"]

HANDLE = 0xCB1A5
NOT_INITIALIZED = 1


class FakeCublasLibrary:
    """A library with one handle, whose stream and workspace must be set before it multiplies."""

    def __init__(self) -> None:
        self._stream = self._workspace_bytes = 0

    def cublasCreate_v2(self, handle: Any) -> int:  # noqa: N802
        assert not get_current_stream().is_capturing()
        handle._obj.value = HANDLE
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:  # noqa: N802
        assert handle.value == HANDLE
        self._stream, self._workspace_bytes = stream.value, 0
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, workspace: Any, size: Any) -> int:  # noqa: N802
        assert handle.value == HANDLE
        self._workspace_bytes = the_machine().board().memory_at(workspace.value, size.value).nbytes
        return 0

    def cublasGemmEx(self, handle: Any, *arguments: Any) -> int:  # noqa: N802
        if handle.value != HANDLE or self._stream != get_current_stream().ptr or not self._workspace_bytes:
            return NOT_INITIALIZED
        cublas.multiply(*(argument.value for argument in arguments))
        return 0
