"""CuPy's ``cupy.cuda``."""

from __future__ import annotations

from tests.fake_cupy.cuda import cublas, device, driver, memory, pinned_memory, runtime, stream
from tests.fake_cupy.cuda.device import Device
from tests.fake_cupy.cuda.memory import MemoryPointer
from tests.fake_cupy.cuda.pinned_memory import alloc_pinned_memory
from tests.fake_cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time

__all__ = [
    "Device",
    "Event",
    "MemoryPointer",
    "Stream",
    "alloc_pinned_memory",
    "cublas",
    "device",
    "driver",
    "get_current_stream",
    "get_elapsed_time",
    "is_available",
    "memory",
    "pinned_memory",
    "runtime",
    "stream",
]


def is_available() -> bool:
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False
