"""CuPy's ``cupy.cuda.runtime``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fake_cupy.cuda.stream import stream_of
from tests.fake_cupy.machine import CUDARuntimeError, the_machine

__all__ = ["CUDARuntimeError"]

CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14
memcpyHostToDevice, memcpyDeviceToHost = 1, 2  # noqa: N816 - CuPy's names
cudaDevAttrMultiProcessorCount = 16  # noqa: N816
cudaDevAttrSingleToDoublePrecisionPerfRatio = 87  # noqa: N816


def __getattr__(name: str) -> Any:
    if name == "is_hip":
        return the_machine().is_hip
    raise AttributeError(f"the stand-in for CuPy has no cupy.cuda.runtime.{name}")


def getDeviceCount() -> int:  # noqa: N802
    count = len(the_machine().boards)
    if count == 0:
        raise CUDARuntimeError(100)
    return count


def getDeviceProperties(device: int) -> dict[str, Any]:  # noqa: N802
    """Return some of the properties; CuPy cuts the UUID off at its first zero byte."""
    board = the_machine().board(device).used()
    uuid = {} if the_machine().is_hip else {"uuid": board.uuid.split(b"\0")[0]}
    sizes = {"totalGlobalMem": board.memory_bytes, "l2CacheSize": board.cache_bytes}
    return {"name": board.name.encode(), **sizes, **uuid}


def deviceGetPCIBusId(device: int) -> str:  # noqa: N802
    return the_machine().board(device).used().address


def deviceGetAttribute(attrib: int, device: int) -> int:  # noqa: N802
    board = the_machine().board(device).used()
    if the_machine().is_hip:
        raise CUDARuntimeError(1)
    return {
        cudaDevAttrMultiProcessorCount: len(board.speed.clocks_hz),
        cudaDevAttrSingleToDoublePrecisionPerfRatio: board.doubles_ratio,
    }[attrib]


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:  # noqa: N802, N803
    return int(peerDevice in the_machine().board(device).peers)


def memGetInfo() -> tuple[int, int]:  # noqa: N802
    board = the_machine().board().used()
    return board.free_bytes, board.memory_bytes


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
    """Copy between the current device's memory and pinned memory of the host."""
    board = the_machine().board()
    if kind == memcpyHostToDevice:
        target, source = board.memory_at(dst, size), _pinned_at(src, size)
    else:
        assert kind == memcpyDeviceToHost
        target, source = _pinned_at(dst, size), board.memory_at(src, size)
    target[:] = source
    name = "host_to_device" if kind == memcpyHostToDevice else "device_to_host"
    board.works(name, stream_of(stream), size / board.speed.bus_bytes_s)


def _pinned_at(pointer: int, size: int) -> NDArray[np.uint8]:
    for pinned in the_machine().pinned:
        offset = pointer - pinned.ptr
        if offset >= 0 and offset + size <= pinned.size:
            return pinned.bytes[offset : offset + size]  # type: ignore[no-any-return]
    raise AssertionError(f"{size} bytes at {pointer:#x} are not in pinned memory")
