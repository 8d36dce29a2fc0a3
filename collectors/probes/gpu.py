"""Probes of a GPU, through CuPy, sized so that a repeat takes about a millisecond on a data-centre GPU.

All probes of a device share one block of its memory (:class:`Workspace`), so they run one after the other. Floor times
are the work divided by the peak in the vendor's data sheet for an H100 SXM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from laggard.collectors.errors import ProbeUnavailableError
from laggard.collectors.probes.base import Probe
from laggard.collectors.probes.exact_pattern import pattern, wrong_rows
from laggard.collectors.probes.workspace import MIB, SCRATCH_BYTES, SPARE_BYTES, GpuProbe, Workspace

COPY_BYTES = 32 * MIB
LINE_BYTES = 128
CLOCK_STEPS = 500_000
KERNEL_LAUNCHES = 200
TRIAD_BYTES = 20 * 12 * SCRATCH_BYTES // 8  # moved by one repeat
CHASED_BYTES = 96 * MIB


@dataclass(frozen=True)
class Precision:
    """A kind of GEMM: how its inputs are stored, its cuBLAS compute type, and whether it runs on AMD GPUs."""

    name: str
    n: int
    products: int
    stored: str
    one_bits: int | None
    compute: str
    on_amd: bool = True


# one_bits are the bits of 1.0 in the 16-bit formats, of which NumPy lacks bfloat16.
PRECISIONS = (
    Precision("fp64", 1024, 16, "R_64F", None, "CUBLAS_COMPUTE_64F"),
    Precision("fp32", 2048, 4, "R_32F", None, "CUBLAS_COMPUTE_32F"),
    Precision("tf32", 2048, 20, "R_32F", None, "CUBLAS_COMPUTE_32F_FAST_TF32", on_amd=False),
    Precision("fp16", 2048, 32, "R_16F", 0x3C00, "CUBLAS_COMPUTE_32F"),
    Precision("bf16", 2048, 32, "R_16BF", 0x3F80, "CUBLAS_COMPUTE_32F", on_amd=False),
)
_SIGN_BIT = np.uint16(0x8000)
_DTYPES = {"R_64F": np.float64, "R_32F": np.float32, "R_16F": np.uint16, "R_16BF": np.uint16}
# Consumer boards have 1/64 of the rate in double precision: the probe would take long, and nobody uses it there.
_MAX_DOUBLES_RATIO = 4


class Gemm(GpuProbe):
    """Square matrix products: the arithmetic rate in one precision, and with it power and heat.

    2 n^3 operations per product. FP64: n = 1024, 16 products, 34 Gflop, floor 0.5 ms at 67 Tflop/s. FP32: n = 2048, 4
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
            raise ProbeUnavailableError(
                workspace.device.gpu, f"has no {self.name}: CuPy does not support it on AMD GPUs"
            )
        if precision.stored == "R_64F" and not is_hip and self._doubles_ratio() > _MAX_DOUBLES_RATIO:
            raise ProbeUnavailableError(workspace.device.gpu, "is very slow in double precision")
        inputs = 2 * n * n * np.dtype(self._dtype).itemsize
        self._left, self._right = workspace.views(2, (n, n), self._dtype)
        used = inputs + n * n * np.dtype(self._product_dtype).itemsize
        whole = workspace.views(1, (used,), np.uint8)[0]
        self._product = whole[inputs:].view(self._product_dtype).reshape(n, n)
        self._one, self._zero = (np.array(value, self._product_dtype) for value in (1, 0))

    def prepare(self) -> None:
        """Write the two matrices."""
        self.device.run(self._write_inputs)

    def kernel(self) -> None:
        """Multiply the matrices as often as the precision requires."""
        from cupy.cuda import cublas
        from cupy.cuda.device import get_cublas_handle

        for _ in range(self._precision.products):
            cublas.gemmEx(get_cublas_handle(), *self._arguments())

    def _arguments(self) -> tuple[int, ...]:
        """Return cuBLAS's arguments, less the handle."""
        from cupy.cuda import cublas, runtime

        n, precision = self._precision.n, self._precision
        stored = getattr(runtime, f"CUDA_{precision.stored}")
        product = runtime.CUDA_R_64F if precision.stored == "R_64F" else runtime.CUDA_R_32F
        # cuBLAS is column-major: given the right matrix first, it returns the product in row-major order.
        arguments = cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, n, n, self._one.ctypes.data
        right, left = ((matrix.data.ptr, stored, n) for matrix in (self._right, self._left))
        result = (self._zero.ctypes.data, self._product.data.ptr, product, n)
        # On an AMD GPU CuPy expects a data type in place of the compute type.
        compute = product if runtime.is_hip else getattr(cublas, precision.compute)
        return *arguments, *right, *left, *result, compute, cublas.CUBLAS_GEMM_DEFAULT

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
    """Frequency of the multiprocessors: shows any throttling, even while other kernels share the GPU.

    One warp per multiprocessor runs 500,000 dependent operations, and reads its cycle counter and the global timer
    before and after. The reading is the time of a million cycles, the median over the multiprocessors. Uses no memory.
    Floor: 0.51 ms for a million cycles at 1.98 GHz; a repeat takes 2 million cycles, 1 ms.
    """

    name = "clock"
    unit, is_rate, scale = "GHz", True, 1e-3

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        if self.cupy.cuda.runtime.is_hip:
            raise ProbeUnavailableError(workspace.device.gpu, "has no such clocks: it is an AMD GPU")
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
        """Run once; return the time of a million cycles in seconds."""
        super().seconds()
        ns_per_cycle = self.device.run(lambda: (self._nanoseconds / self._cycles).get())
        return float(np.median(ns_per_cycle)) * 1e-3


class Triad(GpuProbe):
    """a = b - a / 2 on arrays that together exceed the last-level cache: the bandwidth of the GPU's memory.

    Two arrays of 40 MiB in single precision, 20 passes, 12 bytes per element: 2.5 GB. Floor: 0.75 ms at 3.35 TB/s. For
    a larger cache the arrays are larger and the passes fewer. If memory is short the arrays are smaller, and the name
    says so.
    """

    unit, is_rate = "GB/s", True

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        whole = workspace.scratch.nbytes
        self.name = "triad" if whole == workspace.whole_bytes else f"triad_{whole >> 20}MiB"
        self._a, self._b = workspace.views(2, (whole // 8,), np.float32)
        self._passes = max(1, min(20, round(TRIAD_BYTES / (12 * self._a.size))))
        self.bytes_moved = 12.0 * self._a.size * self._passes
        self.operations = 2.0 * self._a.size * self._passes
        self.scale = self.bytes_moved * 1e-9
        self._add = self.cupy.ElementwiseKernel("float32 b", "float32 a", "a = b - 0.5f * a", "laggard_triad")

    def prepare(self) -> None:
        """Initialise the arrays."""
        self.device.run(lambda: (self._a.fill(0), self._b.fill(3)))

    def kernel(self) -> None:
        """Run all passes."""
        for _ in range(self._passes):
            self._add(self._b, self._a)

    def wrong_results(self) -> int:
        """Return how many elements differ from the middle one: all of them should be equal."""
        return self.device.run(lambda: int((self._a != self._a[self._a.size // 2]).sum()))


class Chase(GpuProbe):
    """Pointer chase, one thread whose every read gives the address of the next: the latency of a cache or of memory.

    A random cycle through lines of 128 bytes. L2: 8 MiB (less if the cache is smaller than 16), 4096 reads, floor
    0.6 ms at 150 ns. Memory: 96 MiB (more if the last cache is larger than 60), 2048 reads, floor 1.0 ms at 500 ns. The
    latencies are typical of microbenchmarks of such GPUs. Each repeat continues with lines that were not read for many
    repeats; the lines of the L2 chase are loaded into the cache beforehand.
    """

    unit = "ns a read"

    def __init__(self, workspace: Workspace, name: str, size_bytes: int, hops: int, *, cached: bool) -> None:
        super().__init__(workspace)
        if size_bytes + SPARE_BYTES > workspace.free_bytes():
            raise ProbeUnavailableError(workspace.device.gpu, f"cannot spare {size_bytes >> 20} MiB")
        self.name = f"chase_{name}"
        self._cached = cached
        self.bytes_moved = float(hops * LINE_BYTES)
        self.scale = 1e9 / hops
        self._hops = np.int64(hops)
        self._run = workspace.kernel("chase")
        self._next = workspace.device.run(lambda: self.cupy.asarray(_cycle(size_bytes)))
        self._at = workspace.device.run(lambda: self.cupy.zeros(1, np.uint32))

    def prepare(self) -> None:
        """Load all lines into the cache, if they belong there: earlier kernels have evicted them."""
        if self._cached:
            self.device.run(lambda: self._next.max())

    def kernel(self) -> None:
        """Continue from where the last repeat ended."""
        self._run((1,), (1,), (self._next, self._hops, self._at))


def _cycle(size_bytes: int) -> Any:
    """Return an array in which the first number of each line is the index of the next line."""
    words = LINE_BYTES // 4
    order = np.random.default_rng(1).permutation(size_bytes // LINE_BYTES).astype(np.uint32) * words
    following = np.zeros(size_bytes // 4, np.uint32)
    following[order] = np.roll(order, -1)
    return following


class HostToDevice(GpuProbe):
    """Copy from pinned host memory: the bus, its width and generation, and the memory's NUMA node.

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
    """Copy to pinned host memory: like :class:`HostToDevice` in the other direction, with the same floor."""

    name = "device_to_host"
    _kind = "memcpyDeviceToHost"


class KernelLaunch(GpuProbe):
    """Submits 200 empty kernels: the time that the processor and the driver add to each.

    Floor: 0.4 ms at 2 us each.
    """

    name = "launch"
    unit, scale = "us each", 1e6 / KERNEL_LAUNCHES

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._run = workspace.kernel("nothing")

    def kernel(self) -> None:
        """Submit the kernels."""
        for _ in range(KERNEL_LAUNCHES):
            self._run((1,), (1,), ())


def _gemm(precision: Precision) -> Callable[[Workspace], Probe]:
    return lambda workspace: Gemm(workspace, precision)


# By name. The copies come last: NVML's figures for the bus are only right while it is in use, and they are read after
# the round.
GPU_PROBES: Mapping[str, Callable[[Workspace], Probe]] = {
    "clock": Clock,
    **{f"gemm_{precision.name}": _gemm(precision) for precision in PRECISIONS},
    "triad": Triad,
    "chase_l2": lambda workspace: Chase(workspace, "l2", workspace.cached_bytes(), 4096, cached=True),
    "chase_memory": lambda workspace: Chase(
        workspace, "memory", workspace.beyond_cache(CHASED_BYTES), 2048, cached=False
    ),
    "launch": KernelLaunch,
    "device_to_host": DeviceToHost,
    "host_to_device": HostToDevice,
}
