"""Probes of a GPU, through CuPy: sizes are such that a repeat takes about a millisecond on a data-centre GPU.

All probes of a device share one piece of its memory (:class:`Workspace`), so they run one after the other. Floor times
are the work divided by the peak that the vendor's data sheet names for an H100 SXM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectors.device import GpuDevice
from collectors.probes.base import Probe, ProbeUnavailableError
from collectors.probes.cuda import KERNELS
from collectors.probes.pattern import pattern, wrong_rows

__all__ = ["GPU_PROBES", "Chase", "Clock", "DeviceToHost", "Gemm", "HostToDevice", "Launch", "PeerCopy", "Triad"]

MIB = 1 << 20
SCRATCH_BYTES = 80 * MIB
COPY_BYTES = 32 * MIB
CACHED_BYTES = 8 * MIB
SHARE_OF_FREE = 4  # the scratch memory takes at most this part (1/4) of what is free
SPARE_BYTES = 48 * MIB  # what writing and checking the largest matrices takes for a moment
LINE_BYTES = 128
CLOCK_STEPS = 500_000
LAUNCHES = 200


class Workspace:
    """The memory that a device's probes share: 80 MiB, or half or a quarter of that where memory is short.

    Together with the two pointer chases that is 184 MiB, and 40 MiB more while matrices are written and checked.

    Raises
    ------
    ProbeUnavailableError
        If not even a quarter can be had.
    """

    def __init__(self, device: GpuDevice) -> None:
        import cupy

        self.cupy: Any = cupy
        self.device = device
        free_bytes = self.free_bytes()
        sizes = [SCRATCH_BYTES >> halvings for halvings in range(3)]
        fitting = [size for size in sizes if size * SHARE_OF_FREE <= free_bytes]
        if not fitting:
            raise ProbeUnavailableError(f"gpu {device.gpu} has {free_bytes >> 20} MiB free: too little for probes")
        self.scratch = device.run(lambda: cupy.empty(fitting[0], np.uint8))
        self._module: Any = cupy.RawModule(code=KERNELS)

    def free_bytes(self) -> int:
        """Return how much of the device's memory nobody holds."""
        return int(self.device.run(self.cupy.cuda.runtime.memGetInfo)[0])

    def kernel(self, name: str) -> Any:
        """Return one of the probes' own kernels: CuPy loads it onto the device that is current when it is asked for."""
        return self.device.run(lambda: self._module.get_function(name))

    def cached_bytes(self) -> int:
        """Return how much surely fits into the device's last cache: 8 MiB, or less than half of a smaller cache."""
        cache_bytes = self.cupy.cuda.runtime.getDeviceProperties(self.device.ordinal).get("l2CacheSize", 0)
        return min(CACHED_BYTES, 1 << (cache_bytes // 2).bit_length() - 1) if cache_bytes else CACHED_BYTES

    def views(self, count: int, shape: tuple[int, ...], dtype: Any) -> list[Any]:
        """Return arrays that lie side by side in the scratch memory.

        Raises
        ------
        ProbeUnavailableError
            If they do not fit.
        """
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if count * n_bytes > self.scratch.nbytes:
            raise ProbeUnavailableError(f"{count * n_bytes >> 20} MiB do not fit into what gpu {self.device.gpu} has")
        return [
            self.scratch[place * n_bytes : (place + 1) * n_bytes].view(dtype).reshape(shape) for place in range(count)
        ]


class GpuProbe(Probe):
    """A probe with the memory that it shares with others of its device."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace.device)
        self.workspace = workspace
        self.cupy = workspace.cupy


@dataclass(frozen=True)
class Precision:
    """A kind of GEMM: what the inputs are stored as, with which of cuBLAS's compute types, and whether AMD has it."""

    name: str
    n: int
    products: int
    stored: str
    one_bits: int | None
    compute: str
    on_amd: bool = True


# The bits of 1.0 where NumPy has no such number, or where it is as simple: 16 bits each.
PRECISIONS = (
    Precision("fp64", 1024, 16, "R_64F", None, "CUBLAS_COMPUTE_64F"),
    Precision("fp32", 2048, 4, "R_32F", None, "CUBLAS_COMPUTE_32F"),
    Precision("tf32", 2048, 20, "R_32F", None, "CUBLAS_COMPUTE_32F_FAST_TF32", on_amd=False),
    Precision("fp16", 2048, 32, "R_16F", 0x3C00, "CUBLAS_COMPUTE_32F"),
    Precision("bf16", 2048, 32, "R_16BF", 0x3F80, "CUBLAS_COMPUTE_32F", on_amd=False),
)
_SIGN_BIT = np.uint16(0x8000)
_DTYPES = {"R_64F": np.float64, "R_32F": np.float32, "R_16F": np.uint16, "R_16BF": np.uint16}
# Consumer boards do double precision at 1/64 of single: the probe would take long, and nobody computes so there.
_FEW_DOUBLES = 4


class Gemm(GpuProbe):
    """Square matrix products: the arithmetic rate of one precision, and with it power and heat.

    2 n^3 operations a product. FP64: n = 1024, 16 products, 34 Gflop, floor 0.5 ms at 67 Tflop/s. FP32: n = 2048, 4
    products, 69 Gflop, 1.0 ms at 67 Tflop/s. TF32: 20 products, 344 Gflop, 0.7 ms at 495 Tflop/s. FP16 and BF16: 32
    products, 550 Gflop, 0.6 ms at 990 Tflop/s. At most 48 MiB of arrays. The product is an exact matrix of integers in
    every precision, and is checked.
    """

    unit, is_rate = "Tflop/s", True

    def __init__(self, workspace: Workspace, precision: Precision) -> None:
        super().__init__(workspace)
        self.name = f"gemm_{precision.name}"
        self._precision = precision
        n = precision.n
        self.operations = 2.0 * n**3 * precision.products
        self.scale = self.operations * 1e-12
        self._dtype = _DTYPES[precision.stored]
        self._product_dtype = np.float64 if precision.stored == "R_64F" else np.float32
        is_hip = self.cupy.cuda.runtime.is_hip
        if is_hip and not precision.on_amd:
            raise ProbeUnavailableError(f"CuPy has no {self.name} on an AMD GPU")
        if precision.stored == "R_64F" and not is_hip and self._doubles_ratio() > _FEW_DOUBLES:
            raise ProbeUnavailableError(f"gpu {workspace.device.gpu} has next to no double precision")
        inputs = 2 * n * n * np.dtype(self._dtype).itemsize
        self._left, self._right = workspace.views(2, (n, n), self._dtype)
        whole = workspace.views(1, (inputs + n * n * np.dtype(self._product_dtype).itemsize,), np.uint8)[0]
        self._product = whole[inputs:].view(self._product_dtype).reshape(n, n)
        self._one, self._zero = (np.array(value, self._product_dtype) for value in (1, 0))

    def prepare(self) -> None:
        """Write the two matrices."""
        self.device.run(self._write_inputs)

    def kernel(self) -> None:
        """Multiply as often as it takes."""
        from cupy.cuda import cublas, runtime
        from cupy.cuda.device import get_cublas_handle

        n, precision = self._precision.n, self._precision
        stored = getattr(runtime, f"CUDA_{precision.stored}")
        product = runtime.CUDA_R_64F if precision.stored == "R_64F" else runtime.CUDA_R_32F
        # cuBLAS stores by columns: it is handed the right matrix first, and returns the product by rows.
        arguments = (cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, n, n, self._one.ctypes.data)
        right, left = (self._right.data.ptr, stored, n), (self._left.data.ptr, stored, n)
        result = (self._zero.ctypes.data, self._product.data.ptr, product, n)
        # On an AMD GPU CuPy takes a type of numbers in the place of a compute type, and only that.
        compute = product if runtime.is_hip else getattr(cublas, precision.compute)
        for _ in range(precision.products):
            cublas.gemmEx(get_cublas_handle(), *arguments, *right, *left, *result, compute, cublas.CUBLAS_GEMM_DEFAULT)

    def wrong_results(self) -> int:
        """Return in how many rows the last product is wrong."""
        return self.device.run(lambda: wrong_rows(*self._patterns(), self._product, self.cupy))

    def _patterns(self) -> tuple[Any, Any]:
        n = self._precision.n
        return pattern(n, 1, self.cupy), pattern(n, 2, self.cupy)

    def _write_inputs(self) -> None:
        one = self._precision.one_bits
        for matrix, numbers in zip((self._left, self._right), self._patterns(), strict=True):
            matrix[...] = numbers if one is None else np.uint16(one) * (numbers != 0) + _SIGN_BIT * (numbers < 0)

    def _doubles_ratio(self) -> int:
        attribute = self.cupy.cuda.runtime.cudaDevAttrSingleToDoublePrecisionPerfRatio
        return int(self.cupy.cuda.runtime.deviceGetAttribute(attribute, self.workspace.device.ordinal))


class Clock(GpuProbe):
    """Frequency of the multiprocessors: any throttling shows, also while other kernels share the GPU.

    One warp on each multiprocessor runs 500,000 dependent operations and reads the count of its cycles and the global
    time before and after; the reading is the time of a million cycles, the median over the multiprocessors. No
    memory. Floor: 0.51 ms for a million cycles at 1.98 GHz; a repeat takes 2 million cycles, 1 ms.
    """

    name = "clock"
    unit, is_rate, scale = "GHz", True, 1e-3

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        if self.cupy.cuda.runtime.is_hip:
            raise ProbeUnavailableError("an AMD GPU has no such clocks")
        runtime = self.cupy.cuda.runtime
        ordinal = workspace.device.ordinal
        self._blocks = int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, ordinal))
        self._run = workspace.kernel("clock_ratio")
        self._cycles, self._nanoseconds = workspace.device.run(
            lambda: [self.cupy.zeros(self._blocks, np.int64) for _ in range(2)]
        )
        self._sink = workspace.device.run(lambda: self.cupy.zeros(1, np.float32))

    def kernel(self) -> None:
        """Run the chain on every multiprocessor."""
        self._run((self._blocks,), (32,), (np.int64(CLOCK_STEPS), self._cycles, self._nanoseconds, self._sink))

    def seconds(self) -> float:
        """Run once; return the seconds that a million cycles take."""
        super().seconds()
        ns_per_cycle = self.device.run(lambda: (self._nanoseconds / self._cycles).get())
        return float(np.median(ns_per_cycle)) * 1e-3


class Triad(GpuProbe):
    """a = b - a / 2 on arrays of together more than the last cache: the bandwidth of the GPU's memory.

    Two arrays of 40 MiB in single precision, 20 passes, 12 bytes an element: 2.5 GB. Floor: 0.75 ms at 3.35 TB/s.
    Where memory is short the arrays are smaller, and the name says so.
    """

    unit, is_rate = "GB/s", True
    _PASSES = 20

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        whole = workspace.scratch.nbytes
        self.name = "triad" if whole == SCRATCH_BYTES else f"triad_{whole >> 20}MiB"
        self._a, self._b = workspace.views(2, (whole // 8,), np.float32)
        self.bytes_moved = 12.0 * self._a.size * self._PASSES
        self.operations = 2.0 * self._a.size * self._PASSES
        self.scale = self.bytes_moved * 1e-9
        self._add = self.cupy.ElementwiseKernel("float32 b", "float32 a", "a = b - 0.5f * a", "laggard_triad")

    def prepare(self) -> None:
        """Write the arrays."""
        self.device.run(lambda: (self._a.fill(0), self._b.fill(3)))

    def kernel(self) -> None:
        """Add again and again."""
        for _ in range(self._PASSES):
            self._add(self._b, self._a)

    def wrong_results(self) -> int:
        """Return how many elements are not like the middle one: all began alike and have seen the same."""
        return self.device.run(lambda: int((self._a != self._a[self._a.size // 2]).sum()))


class Chase(GpuProbe):
    """One thread that reads where its last read has told it to: the latency of a cache or of memory.

    A random cycle through lines of 128 bytes. L2: 8 MiB (less where the cache is smaller than 16), 4096 reads, floor
    0.6 ms at 150 ns. Memory: 96 MiB, 2048 reads, floor 1.0 ms at 500 ns: figures of the order that microbenchmarks of
    such GPUs have found. Each repeat goes on to lines that it has not read for many repeats; those of L2 are brought
    there beforehand.
    """

    unit = "ns a read"

    def __init__(self, workspace: Workspace, name: str, size_bytes: int, hops: int, *, cached: bool) -> None:
        super().__init__(workspace)
        if size_bytes + SPARE_BYTES > workspace.free_bytes():
            raise ProbeUnavailableError(f"gpu {workspace.device.gpu} has no {size_bytes >> 20} MiB to spare")
        self.name = f"chase_{name}"
        self._cached = cached
        self.bytes_moved = float(hops * LINE_BYTES)
        self.scale = 1e9 / hops
        self._hops = np.int64(hops)
        self._run = workspace.kernel("chase")
        self._next = workspace.device.run(lambda: self.cupy.asarray(_cycle(size_bytes)))
        self._at = workspace.device.run(lambda: self.cupy.zeros(1, np.uint32))

    def prepare(self) -> None:
        """Read all lines, if they are to be in the cache: whatever ran before has taken their place there."""
        if self._cached:
            self.device.run(lambda: self._next.max())

    def kernel(self) -> None:
        """Read on from where the last repeat ended."""
        self._run((1,), (1,), (self._next, self._hops, self._at))


def _cycle(size_bytes: int) -> Any:
    """Return for each line, at its first number, the place of the line that comes next."""
    words = LINE_BYTES // 4
    order = np.random.default_rng(1).permutation(size_bytes // LINE_BYTES).astype(np.uint32) * words
    following = np.zeros(size_bytes // 4, np.uint32)
    following[order] = np.roll(order, -1)
    return following


class HostToDevice(GpuProbe):
    """Copy from pinned memory of the host: the bus, its width and generation, and where the memory lies.

    32 MiB. Floor: 0.6 ms at 55 GB/s (PCIe generation 5, 16 lanes), 1.3 ms at generation 4.
    """

    name = "host_to_device"
    bytes_moved = COPY_BYTES
    unit, is_rate, scale = "GB/s", True, COPY_BYTES * 1e-9
    _kind = "memcpyHostToDevice"

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        (self._there,) = workspace.views(1, (COPY_BYTES,), np.uint8)
        self._here = workspace.device.run(lambda: self.cupy.cuda.alloc_pinned_memory(COPY_BYTES))

    def kernel(self) -> None:
        """Copy once."""
        runtime = self.cupy.cuda.runtime
        ends = (self._there.data.ptr, self._here.ptr)
        target, source = ends if self._kind == "memcpyHostToDevice" else ends[::-1]
        stream = self.cupy.cuda.get_current_stream().ptr
        runtime.memcpyAsync(target, source, COPY_BYTES, getattr(runtime, self._kind), stream)


class DeviceToHost(HostToDevice):
    """Copy to pinned memory of the host: as the other way round, with the same floor."""

    name = "device_to_host"
    _kind = "memcpyDeviceToHost"


class PeerCopy(GpuProbe):
    """Copy to the next GPU that this process sees: NVLink, or the bus between them.

    32 MiB, 8 times. Floor: 0.6 ms at 450 GB/s (NVLink 4).
    """

    _COPIES = 8
    name = "peer_copy"
    bytes_moved = COPY_BYTES * _COPIES
    unit, is_rate, scale = "GB/s", True, bytes_moved * 1e-9

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        runtime, me = self.cupy.cuda.runtime, workspace.device.ordinal
        self._peer = (me + 1) % int(runtime.getDeviceCount())
        if self._peer == me or not runtime.deviceCanAccessPeer(me, self._peer):
            raise ProbeUnavailableError(f"gpu {workspace.device.gpu} has no peer")
        (self._here,) = workspace.views(1, (COPY_BYTES,), np.uint8)
        with self.cupy.cuda.Device(self._peer):
            self._there = self.cupy.empty(COPY_BYTES, np.uint8)

    def kernel(self) -> None:
        """Copy as often as it takes."""
        for _ in range(self._COPIES):
            # CuPy turns the direct way on; without it such a copy is staged through the host, peers or not.
            self._there.data.copy_from_device_async(self._here.data, COPY_BYTES)


class Launch(GpuProbe):
    """Submits 200 kernels that do nothing: what the processor and the driver add to each.

    Floor: 0.4 ms at 2 us each.
    """

    name = "launch"
    unit, scale = "us each", 1e6 / LAUNCHES

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._run = workspace.kernel("nothing")

    def kernel(self) -> None:
        """Submit them."""
        for _ in range(LAUNCHES):
            self._run((1,), (1,), ())


def _gemm(precision: Precision) -> Callable[[Workspace], Probe]:
    return lambda workspace: Gemm(workspace, precision)


# By name. The copies come last: what NVML tells of the bus is right while it is in use, and that is asked after the
# round.
GPU_PROBES: Mapping[str, Callable[[Workspace], Probe]] = {
    "clock": Clock,
    **{f"gemm_{precision.name}": _gemm(precision) for precision in PRECISIONS},
    "triad": Triad,
    "chase_l2": lambda workspace: Chase(workspace, "l2", workspace.cached_bytes(), 4096, cached=True),
    "chase_memory": lambda workspace: Chase(workspace, "memory", 96 * MIB, 2048, cached=False),
    "launch": Launch,
    "peer_copy": PeerCopy,
    "device_to_host": DeviceToHost,
    "host_to_device": HostToDevice,
}
