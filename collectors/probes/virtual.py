"""Probes of a virtual device, in NumPy: the same parts under the same names, at a size that suits one core.

A virtual device has no SM clock, no bus and no peers; where a probe is a substitute, its docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from laggard.collectors.device import Device
from laggard.collectors.probes.base import Probe
from laggard.collectors.probes.exact_pattern import pattern, wrong_rows

MIB = 1 << 20
GEMM_SIZE = 768
CLOCK_STEPS = 60_000
TRIAD_ELEMENTS = 16 * MIB // 8
TRIAD_PASSES = 2
CHASE_ELEMENTS = 32 * MIB // 8
CHASE_HOPS = 16
CHASE_STARTS = 65536
KERNEL_LAUNCHES = 2000


class Gemm(Probe):
    """Square matrix product: the arithmetic rate, and the wait for other kernels on the device.

    2 n^3 operations on 3 n^2 numbers: at n = 768, 0.9 Gflop on 7 MB in single precision. Floor: about 10 ms at a core's
    peak of 90 Gflop/s.
    """

    unit, is_rate = "Gflop/s", True

    def __init__(self, device: Device, dtype: type[np.floating] = np.float32, size: int = GEMM_SIZE) -> None:
        super().__init__(device)
        self.name = f"gemm_fp{np.dtype(dtype).itemsize * 8}"
        self.operations = 2.0 * size**3
        self.scale = self.operations * 1e-9
        self._left, self._right = (pattern(size, seed).astype(dtype) for seed in (1, 2))
        self._product = np.empty_like(self._left)

    def kernel(self) -> None:
        """Multiply once."""
        np.matmul(self._left, self._right, out=self._product)

    def wrong_results(self) -> int:
        """Return in how many rows the product is wrong."""
        return wrong_rows(self._left, self._right, self._product)


class Clock(Probe):
    """A fixed number of dependent steps of the interpreter: a substitute for the clock of a GPU's multiprocessors.

    60,000 additions. Floor: about 2 ms on a core of 3 GHz.
    """

    name = "clock"
    operations = CLOCK_STEPS
    unit, is_rate, scale = "Mstep/s", True, CLOCK_STEPS * 1e-6

    def kernel(self) -> int:
        """Count the steps."""
        total = 0
        for step in range(CLOCK_STEPS):
            total += step
        return total


class Triad(Probe):
    """a = b + s c on arrays that together exceed most last-level caches: the bandwidth of memory.

    2 operations and 24 bytes per element (40 with NumPy's intermediate result), 16 MiB per array, 2 passes. Floor:
    about 2 ms at 50 GB/s.
    """

    name = "triad"
    operations = 2.0 * TRIAD_ELEMENTS * TRIAD_PASSES
    bytes_moved = 24.0 * TRIAD_ELEMENTS * TRIAD_PASSES
    unit, is_rate, scale = "GB/s", True, bytes_moved * 1e-9

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._a = np.empty(TRIAD_ELEMENTS)
        self._b, self._c = (np.full(TRIAD_ELEMENTS, value) for value in (1.0, 2.0))

    def kernel(self) -> None:
        """Run both passes."""
        for _ in range(TRIAD_PASSES):
            np.multiply(self._c, 3.0, out=self._a)
            np.add(self._a, self._b, out=self._a)

    def wrong_results(self) -> int:
        """Return how many sums are wrong."""
        return int((self._a != 7.0).sum())


class Chase(Probe):
    """Pointer chase in a random cycle through 32 MiB: the latency of memory.

    16 passes of 64 Ki reads, 8 bytes each. Floor: about 2 ms at 2 ns per read.
    """

    name = "chase_memory"
    bytes_moved = 8.0 * CHASE_HOPS * CHASE_STARTS
    unit, scale = "ns a read", 1e9 / (CHASE_HOPS * CHASE_STARTS)

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        order = np.random.default_rng(1).permutation(CHASE_ELEMENTS)
        self._next = np.empty_like(order)
        self._next[order] = np.roll(order, -1)
        self._start = order[:CHASE_STARTS].copy()

    def kernel(self) -> None:
        """Follow the cycle from many starting points at once, one hop per pass."""
        at = self._start
        for _ in range(CHASE_HOPS):
            at = self._next[at]


class KernelLaunch(Probe):
    """Submits 2,000 of the smallest kernels: the time that the processor adds to each.

    Floor: about 0.2 ms.
    """

    name = "launch"
    operations = KERNEL_LAUNCHES
    unit, scale = "us each", 1e6 / KERNEL_LAUNCHES

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._number = np.zeros(1)

    def kernel(self) -> None:
        """Add 1 to a number, again and again."""
        for _ in range(KERNEL_LAUNCHES):
            np.add(self._number, 1.0, out=self._number)


VIRTUAL_PROBES: Mapping[str, Callable[[Device], Probe]] = {
    "clock": Clock,
    "gemm_fp32": Gemm,
    "gemm_fp64": lambda device: Gemm(device, np.float64, GEMM_SIZE // 2),
    "triad": Triad,
    "chase_memory": Chase,
    "launch": KernelLaunch,
}
