"""Devices: a GPU, or a virtual device that stands in for one where there is none.

:meth:`Device.run` runs a kernel on a device; :meth:`Device.timed` also returns how long it took on the device's own
clock. That time is counted from submission to completion, so it includes whatever else the device had to do in between.
What a GPU's own clock misses of that, the host's has: see :class:`Timing`.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Protocol, TypeVar

from laggard.collectors.errors import CupyMissingError, NoDeviceError
from laggard.kvstore.client.environment import NODE

T = TypeVar("T")
DeviceId = tuple[str, str]
"""A device of a job: the host name of its node, and the GPU's name on that node."""

VIRTUAL_DEVICES = "LAGGARD_VIRTUAL_DEVICES"
VIRTUAL_DEVICE_DIR = "LAGGARD_VIRTUAL_DEVICE_DIR"
LOCAL_RANK = "LOCAL_RANK"


# A kernel has waited if the host's clock says so by more than a quarter and more than half a millisecond: to submit it
# and to be woken should take a tenth of that.
WAITED_RATIO, WAITED_MIN_S = 1.25, 5e-4


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one kernel took.

    A GPU that several processes share gives each of them the whole device for a slice of time. The first of the two
    events that time a kernel may be reached only when the kernel's process gets its slice; the wait for that is then
    missing between the events.
    """

    device_s: float  # seconds on the device's clock: on a GPU, between two events around the kernel
    wall_s: float  # seconds on the host's clock, from submission until the host knows of the completion

    @property
    def waited(self) -> bool:
        """Whether the kernel waited for the device in a way that the device's clock did not count."""
        return self.wall_s > max(WAITED_RATIO * self.device_s, self.device_s + WAITED_MIN_S)

    @property
    def seconds(self) -> float:
        """Seconds from submission to completion: on the device's clock unless that has missed a wait."""
        return self.wall_s if self.waited else self.device_s


class Device(Protocol):
    """One GPU or virtual device of the node that this process runs on."""

    @property
    def gpu(self) -> str:
        """The device's name on its node, for instance ``0``."""

    @property
    def model(self) -> str:
        """The device's model: only devices of the same model are peers."""

    @property
    def uuid(self) -> str:
        """A name that stays with the device when it moves to another slot or node; empty if it has none."""

    @property
    def array_module(self) -> ModuleType:
        """The module to create the kernel's arrays with: CuPy for a GPU, NumPy for a virtual device."""

    def run(self, kernel: Callable[[], T]) -> T:
        """Run one kernel to completion and return its result."""

    def timed(self, kernel: Callable[[], T]) -> tuple[T, float]:
        """Run one kernel; return its result and the seconds from submission to completion."""

    def timing(self, kernel: Callable[[], object]) -> Timing:
        """Run one kernel; return how long it took by the device's clock and by the host's."""

    def wait_until_free(self) -> None:
        """Wait for everything that this process has submitted to the device."""

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which libraries that use CUDA's current device, as all do by default, use this one."""


class VirtualDevice:
    """A CPU-backed device that runs one kernel at a time, whichever process submitted it.

    Kernels queue for the device as they do for a GPU that several processes share: each new kernel goes to the end of
    the queue. The device's clock is the processor time that its kernels have used. It stands still while the device is
    idle and while the machine's cores are busy elsewhere, so a reading shows the load on this device, not the load on
    the machine.
    """

    model = "virtual"

    def __init__(self, gpu: str, directory: Path, host: str = "localhost") -> None:
        self.gpu = gpu  # the device's name on its node
        self.uuid = f"virtual-{host}-{gpu}"
        self._entrance_path = directory / f"device-{gpu}.entrance"
        self._clock_path = directory / f"device-{gpu}.clock"

    @property
    def array_module(self) -> ModuleType:
        """NumPy, loaded with the first kernel's arrays."""
        import numpy

        return numpy

    def run(self, kernel: Callable[[], T]) -> T:
        """Run one kernel to completion and return its result."""
        return self.timed(kernel)[0]

    def timed(self, kernel: Callable[[], T]) -> tuple[T, float]:
        """Run one kernel; return its result and the seconds from submission to completion on the device's clock."""
        with _opened(self._clock_path) as clock:
            submitted_s = _read_seconds(clock)
            with self._exclusive(clock):
                begun_s = time.thread_time()
                try:
                    result = kernel()
                finally:
                    ended_s = _read_seconds(clock) + time.thread_time() - begun_s
                    os.pwrite(clock, _SECONDS.pack(ended_s), 0)
        return result, ended_s - submitted_s

    def timing(self, kernel: Callable[[], object]) -> Timing:
        """Run one kernel; return its seconds: a virtual device's clock counts every wait for the device."""
        seconds = self.timed(kernel)[1]
        return Timing(seconds, seconds)

    def wait_until_free(self) -> None:
        """Do nothing: submitting a kernel already waits for its completion."""

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return a context that changes nothing: CUDA knows nothing of this device."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _exclusive(self, clock: int) -> Iterator[None]:
        # Two locks make a queue: the process that waits for the device holds the entrance, so a process that leaves the
        # device and comes back has to wait behind it. With the device's lock alone it would win most of the time.
        with _opened(self._entrance_path) as entrance:
            fcntl.flock(entrance, fcntl.LOCK_EX)
            fcntl.flock(clock, fcntl.LOCK_EX)
            fcntl.flock(entrance, fcntl.LOCK_UN)
            os.sched_yield()  # lets the process that was waiting at the entrance take it before a newcomer does
        yield  # closing the clock's file releases the device, even if the process dies


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
    """A GPU, used through CuPy."""

    def __init__(self, gpu: str, ordinal: int) -> None:
        try:
            import cupy
        except ImportError as error:
            raise CupyMissingError(str(error)) from error

        from laggard.collectors.symptoms import board_power_limit_w, board_uuid  # loads NVML's library

        self._cupy: Any = cupy
        self.gpu = gpu  # the device's name on its node
        self.ordinal = ordinal  # its index among the GPUs that this process can see
        self.array_module: ModuleType = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        name = properties["name"].decode()
        # NVML and CUDA may number the devices differently; the bus address is unambiguous.
        # The PCI address by which NVML knows it; for a MIG slice, that of the whole GPU
        self.bus_address = str(cupy.cuda.runtime.deviceGetPCIBusId(ordinal))
        # Only CuPy knows the UUID of a MIG slice; CuPy cuts UUIDs at their first zero byte, so NVML is preferred.
        whole = "" if " MIG " in name else board_uuid(self.bus_address)
        self.uuid = whole or uuid_text(properties.get("uuid", b""))
        limit_w = board_power_limit_w(self.bus_address)
        power = "" if limit_w is None else f", {limit_w:.0f} W"
        # The board's name (a MIG slice's includes its profile), its memory and, if the driver reports it, the factory
        # power limit
        self.model = f"{name}, {properties['totalGlobalMem'] / 2**30:.0f} GiB{power}"
        with cupy.cuda.Device(ordinal):
            # 0 is the lowest stream priority: work that the program gives a higher one runs before the probes.
            self._stream = cupy.cuda.Stream(non_blocking=True, priority=0)

    def run(self, kernel: Callable[[], T]) -> T:
        """Run one kernel to completion and return its result."""
        with self._cupy.cuda.Device(self.ordinal):
            result = kernel()
            done = self._event(disable_timing=True)
            done.record()
            done.synchronize()
        return result

    def timed(self, kernel: Callable[[], T]) -> tuple[T, float]:
        """Run one kernel in a lowest-priority stream; return its result and the seconds until its completion."""
        results: list[T] = []
        timing = self.timing(lambda: results.append(kernel()))
        return results[0], timing.seconds

    def timing(self, kernel: Callable[[], object]) -> Timing:
        """Run one kernel in a lowest-priority stream; return the seconds between two events, and those of the host."""
        with self._cupy.cuda.Device(self.ordinal), self._stream:
            submitted, ended = self._event(), self._event()
            begun_s = perf_counter()
            submitted.record()
            kernel()
            ended.record()
            ended.synchronize()
            wall_s = perf_counter() - begun_s
            elapsed_ms = self._cupy.cuda.get_elapsed_time(submitted, ended)
        return Timing(float(elapsed_ms) / 1000, wall_s)

    def _event(self, *, disable_timing: bool = False) -> Any:
        # The host sleeps until the event is reached; by default it would spin, on a processor that the program needs.
        return self._cupy.cuda.Event(block=True, disable_timing=disable_timing)

    def wait_until_free(self) -> None:
        """Wait for everything that this process has submitted to the device, in any stream."""
        self._cupy.cuda.Device(self.ordinal).synchronize()

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which this is CUDA's current device for this thread."""
        return self._cupy.cuda.Device(self.ordinal)  # type: ignore[no-any-return]


def local_devices(environ: Mapping[str, str] = os.environ) -> list[Device]:
    """Return all devices of this node that this process may use; see :func:`device_makers`."""
    return [make() for make in device_makers(environ).values()]


def device_makers(environ: Mapping[str, str] = os.environ, driver: Any = None) -> dict[str, Callable[[], Device]]:
    """Return a factory for each device of this node that this process may use, by device name."""
    # These are virtual devices if the launcher created some, else the GPUs that CuPy sees (`CUDA_VISIBLE_DEVICES` is
    # respected). A GPU is not touched before its factory is called, so one that is lost or stuck does not block the
    # others.
    virtual = int(environ.get(VIRTUAL_DEVICES, "0"))
    if virtual:
        directory = Path(environ[VIRTUAL_DEVICE_DIR])
        host = environ.get(NODE, "localhost")
        return {name: partial(VirtualDevice, name, directory, host) for name in visible_names(environ)}
    names = gpu_names(environ, driver)[: _count(driver)]
    if not names:
        raise NoDeviceError
    return {name: partial(GpuDevice, name, ordinal) for ordinal, name in enumerate(names)}


def local_device(environ: Mapping[str, str] = os.environ) -> Device:
    """Return the device that was assigned to this process.

    That is the only one that it can see, or that of its ``LOCAL_RANK``, which torchrun and other launchers set for
    processes that see all devices of their node; without one, the first.
    """
    makers = list(device_makers(environ).values())
    return makers[int(environ.get(LOCAL_RANK, "0")) % len(makers)]()


def gpu_names(environ: Mapping[str, str] = os.environ, driver: Any = None) -> list[str]:
    """Return the names of the GPUs that this process may use, as in ``CUDA_VISIBLE_DEVICES``."""
    # They are those that CuPy sees. Without CuPy they are those of NVIDIA's driver: they cannot be probed, but they are
    # the program's. So are all MIG slices that are listed, although CUDA shows a process only the first.
    names, count = listed_devices(environ), _count(driver)
    if names is None:
        return [str(ordinal) for ordinal in range(count)]
    has_slices = count > 0 and any(name.startswith("MIG-") for name in names)
    return names if has_slices else names[:count]


def _count(driver: Any = None) -> int:
    """Return how many GPUs CUDA shows to this process."""
    try:
        import cupy
    except ImportError:
        return _count_by_driver(driver)
    return int(cupy.cuda.runtime.getDeviceCount()) if cupy.is_available() else 0


def _count_by_driver(driver: Any) -> int:
    import pynvml as nvml

    driver = nvml if driver is None else driver
    try:
        driver.nvmlInit()
        return sum(_may_be_opened(driver, number) for number in range(driver.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return 0


def _may_be_opened(driver: Any, number: int) -> bool:
    import pynvml as nvml

    try:
        driver.nvmlDeviceGetHandleByIndex(number)
    except nvml.NVMLError as error:  # one that is broken is ours all the same
        return bool(error.value != nvml.NVML_ERROR_NO_PERMISSION)
    return True


def uuid_text(raw: bytes) -> str:
    """Format a GPU's 16-byte UUID as NVIDIA's tools do; CuPy cuts it at the first zero byte, or has none."""
    return f"GPU-{uuid.UUID(bytes=raw[:16].ljust(16, bytes(1)))}" if raw else ""


def visible_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the devices that a process may use, as far as its environment says."""
    return listed_devices(environ) or [str(number) for number in range(int(environ.get(VIRTUAL_DEVICES, "0")))]


def listed_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return what ``CUDA_VISIBLE_DEVICES`` lists; None if it is not set, so that all devices are visible."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return None
    names = (name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip())
    return list(itertools.takewhile(lambda name: name != "-1", names))  # as CUDA does: what follows is not visible
