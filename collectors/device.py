"""Devices: a GPU, or a virtual device that stands in for one where there is none.

A kernel runs on a device with :meth:`Device.run`; :meth:`Device.timed` also tells how long it took on the device's own
clock, from its submission to its end, so that whatever else the device had to do in between is counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np

from collectors.symptoms import board_power_limit_w, board_uuid
from kvstore.environment import NODE

__all__ = [
    "VIRTUAL_DEVICES",
    "VIRTUAL_DEVICE_DIR",
    "Device",
    "DeviceError",
    "GpuDevice",
    "VirtualDevice",
    "device_makers",
    "gpu_names",
    "local_device",
    "local_devices",
    "uuid_text",
]

T = TypeVar("T")

VIRTUAL_DEVICES = "LAGGARD_VIRTUAL_DEVICES"
VIRTUAL_DEVICE_DIR = "LAGGARD_VIRTUAL_DEVICE_DIR"


class DeviceError(RuntimeError):
    """There is no such device here, or it cannot be used."""


class Device(Protocol):
    """One GPU, or one virtual device, of the node that this process runs on."""

    @property
    def gpu(self) -> str:
        """The device's name on its node, for instance ``0``."""

    @property
    def model(self) -> str:
        """The device's model: only devices of one model are peers."""

    @property
    def uuid(self) -> str:
        """A name that stays with the device wherever it sits; empty if it has none."""

    @property
    def array_module(self) -> ModuleType:
        """CuPy for a GPU, NumPy for a virtual device: make the kernel's arrays with it."""

    def run(self, kernel: Callable[[], T]) -> T:
        """Run one kernel to its end and return its result."""

    def timed(self, kernel: Callable[[], T]) -> tuple[T, float]:
        """Run one kernel; return its result and the seconds on the device's clock from submission to end."""

    def wait_until_free(self) -> None:
        """Wait for all that this process has submitted to the device."""


class VirtualDevice:
    """A CPU-backed device that runs one kernel at a time, in whichever process it was submitted.

    Kernels queue for the device as they do for a GPU that several processes share: a kernel that is submitted again
    goes behind those that wait. The device's clock is the processor time that its kernels have used. It stands still
    while the device is idle and while the machine's few cores are busy elsewhere, so a reading tells of the load on
    this device, not of the load on the machine.

    Parameters
    ----------
    gpu
        The device's name on its node.
    directory
        Folder that all processes of the node share; the device keeps its queue and its clock there.
    host
        Name of the node.
    """

    model = "virtual"
    array_module: ModuleType = np

    def __init__(self, gpu: str, directory: Path, host: str = "localhost") -> None:
        self.gpu = gpu
        self.uuid = f"virtual-{host}-{gpu}"
        self._entrance_path = directory / f"device-{gpu}.entrance"
        self._clock_path = directory / f"device-{gpu}.clock"

    def run(self, kernel: Callable[[], T]) -> T:
        """Run one kernel to its end and return its result."""
        return self.timed(kernel)[0]

    def timed(self, kernel: Callable[[], T]) -> tuple[T, float]:
        """Run one kernel; return its result and the seconds on the device's clock from submission to end."""
        with _opened(self._clock_path) as clock:
            submitted_s = _read_seconds(clock)
            with self._turn(clock):
                begun_s = time.thread_time()
                try:
                    result = kernel()
                finally:
                    ended_s = _read_seconds(clock) + time.thread_time() - begun_s
                    os.pwrite(clock, _SECONDS.pack(ended_s), 0)
        return result, ended_s - submitted_s

    def wait_until_free(self) -> None:
        """Do nothing: whoever submits a kernel waits for its end."""

    @contextlib.contextmanager
    def _turn(self, clock: int) -> Iterator[None]:
        # Two locks make a queue: whoever waits for the device holds the entrance, so the one who leaves the device and
        # comes back finds itself behind. With the device's lock alone it would win most of the time.
        with _opened(self._entrance_path) as entrance:
            fcntl.flock(entrance, fcntl.LOCK_EX)
            fcntl.flock(clock, fcntl.LOCK_EX)
            fcntl.flock(entrance, fcntl.LOCK_UN)
            os.sched_yield()  # who waits at the entrance was woken, and takes its place before somebody new comes
        yield  # closing the clock's file releases the device, also when the process dies


_SECONDS = struct.Struct("<d")


def _read_seconds(clock: int) -> float:
    data = os.pread(clock, _SECONDS.size, 0)
    return float(_SECONDS.unpack(data)[0]) if data else 0.0


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class GpuDevice:
    """A GPU, used through CuPy.

    Parameters
    ----------
    gpu
        The device's name on its node.
    ordinal
        Its number among the GPUs that this process can see.

    Attributes
    ----------
    model
        The name of the board (a MIG slice's says its profile), its memory and, where it tells one, the power limit that
        it left the factory with.
    bus_address
        Where it sits, as NVML knows it; that of the whole GPU for a slice of one.
    """

    def __init__(self, gpu: str, ordinal: int) -> None:
        import cupy

        self._cupy: Any = cupy
        self.gpu = gpu
        self.ordinal = ordinal
        self.array_module: ModuleType = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        name = properties["name"].decode()
        # NVML counts the devices in another order than CUDA may; on the bus there is only one of each.
        self.bus_address = str(cupy.cuda.runtime.deviceGetPCIBusId(ordinal))
        # A slice has a UUID of its own, which only CuPy tells; of the others CuPy tells no more than up to a zero byte.
        whole = "" if " MIG " in name else board_uuid(self.bus_address)
        self.uuid = whole or uuid_text(properties.get("uuid", b""))
        limit_w = board_power_limit_w(self.bus_address)
        power = "" if limit_w is None else f", {limit_w:.0f} W"
        self.model = f"{name}, {properties['totalGlobalMem'] / 2**30:.0f} GiB{power}"
        with cupy.cuda.Device(ordinal):
            # Streams begin at the lowest priority, 0: whatever the program raises above it goes before the probes.
            self._stream = cupy.cuda.Stream(non_blocking=True, priority=0)

    def run(self, kernel: Callable[[], T]) -> T:
        """Run one kernel to its end and return its result."""
        with self._cupy.cuda.Device(self.ordinal):
            result = kernel()
            self._cupy.cuda.get_current_stream().synchronize()
        return result

    def timed(self, kernel: Callable[[], T]) -> tuple[T, float]:
        """Run one kernel in a stream of the lowest priority; return its result and the seconds between two events."""
        with self._cupy.cuda.Device(self.ordinal), self._stream:
            submitted, ended = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            submitted.record()
            result = kernel()
            ended.record()
            ended.synchronize()
            elapsed_ms = self._cupy.cuda.get_elapsed_time(submitted, ended)
        return result, float(elapsed_ms) / 1000

    def wait_until_free(self) -> None:
        """Wait for all that this process has submitted to the device, in any stream."""
        self._cupy.cuda.Device(self.ordinal).synchronize()


def local_devices(environ: Mapping[str, str] = os.environ) -> list[Device]:
    """Return the devices of this node that this process may use: all those of :func:`device_makers`."""
    return [make() for make in device_makers(environ).values()]


def device_makers(environ: Mapping[str, str] = os.environ) -> dict[str, Callable[[], Device]]:
    """Return, by its name, what makes each device of this node that this process may use.

    Only making a GPU touches it: one that is lost or stuck does not keep the others from being used.

    Virtual ones where the launcher made some, else the GPUs that CuPy sees (``CUDA_VISIBLE_DEVICES`` is respected).

    Raises
    ------
    DeviceError
        If there is neither.
    """
    virtual = int(environ.get(VIRTUAL_DEVICES, "0"))
    if virtual:
        directory = Path(environ[VIRTUAL_DEVICE_DIR])
        host = environ.get(NODE, "localhost")
        virtual_names = _visible(environ) or map(str, range(virtual))
        return {name: partial(VirtualDevice, name, directory, host) for name in virtual_names}
    names = gpu_names(environ)
    if not names:
        raise DeviceError("no GPU here: --virtual-gpus=K makes K virtual devices a node")
    return {name: partial(GpuDevice, name, ordinal) for ordinal, name in enumerate(names)}


def local_device(environ: Mapping[str, str] = os.environ) -> Device:
    """Return the device that was allotted to this process (the first, if several)."""
    return next(iter(device_makers(environ).values()))()


def gpu_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the GPUs that CuPy sees here, as ``CUDA_VISIBLE_DEVICES`` calls them; none without CuPy."""
    try:
        import cupy
    except ImportError:
        return []
    count = int(cupy.cuda.runtime.getDeviceCount()) if cupy.is_available() else 0
    return _visible(environ)[:count] or [str(ordinal) for ordinal in range(count)]


def uuid_text(raw: bytes) -> str:
    """Write a GPU's 16 bytes as NVIDIA's tools do; CuPy hands them over up to the first zero byte, or not at all."""
    return f"GPU-{uuid.UUID(bytes=raw[:16].ljust(16, bytes(1)))}" if raw else ""


def _visible(environ: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
