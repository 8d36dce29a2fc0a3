"""The memory that a GPU's probes share."""

from __future__ import annotations

from typing import Any

import numpy as np

from laggard.collectors.device import GpuDevice
from laggard.collectors.errors import ProbeUnavailableError
from laggard.collectors.probes.base import Probe
from laggard.collectors.probes.cuda_kernels import KERNELS

MIB = 1 << 20
# What is read from memory must not fit into the last cache: 80 MiB for caches of up to 50 MiB, those of the H100.
SCRATCH_BYTES = 80 * MIB
BEYOND_CACHE = 1.6
AMD_LAST_CACHE_BYTES = 256 * MIB  # of the MI300X; HIP tells only of the cache before it
CACHED_BYTES = 8 * MIB
MIN_FREE_RATIO = 4  # the scratch memory takes at most a quarter of the free memory
SPARE_BYTES = 48 * MIB  # needed for a moment to write and check the largest matrices


class Workspace:
    """The memory that a device's probes share: 80 MiB, or half or a quarter of that if memory is short.

    Together with the two pointer chases that makes 184 MiB, and 40 MiB more while matrices are written and checked. If
    the device's last cache is larger than 50 MiB, the block and the larger chase are 1.6 times as large as that cache.
    """

    def __init__(self, device: GpuDevice) -> None:
        import cupy

        self.cupy: Any = cupy
        self.device = device
        free_bytes = self.free_bytes()
        self.cache_bytes = self._last_cache_bytes()
        self.whole_bytes = self.beyond_cache(SCRATCH_BYTES)
        sizes = [self.whole_bytes, *(SCRATCH_BYTES >> halvings for halvings in range(3))]
        fitting = [size for size in sizes if size * MIN_FREE_RATIO <= free_bytes]
        if not fitting:
            raise ProbeUnavailableError(device.gpu, f"has {free_bytes >> 20} MiB free: too little for probes")
        self.scratch = device.run(lambda: cupy.empty(fitting[0], np.uint8))
        self._module: Any = cupy.RawModule(code=KERNELS)

    def beyond_cache(self, n_bytes: int) -> int:
        """Return a size that does not fit into the device's last cache, at least the given one, in whole MiB."""
        return max(n_bytes, -(-int(BEYOND_CACHE * self.cache_bytes) // MIB) * MIB)

    def free_bytes(self) -> int:
        """Return how much of the device's memory is free."""
        return int(self.device.run(self.cupy.cuda.runtime.memGetInfo)[0])

    def kernel(self, name: str) -> Any:
        """Return one of the probes' own kernels, loaded onto this device."""
        return self.device.run(lambda: self._module.get_function(name))

    def cached_bytes(self) -> int:
        """Return a size that fits into the device's last-level cache: 8 MiB, or less than half of a smaller cache."""
        cache_bytes = self._l2_bytes()
        return min(CACHED_BYTES, 1 << (cache_bytes // 2).bit_length() - 1) if cache_bytes else CACHED_BYTES

    def _l2_bytes(self) -> int:
        return int(self.cupy.cuda.runtime.getDeviceProperties(self.device.ordinal).get("l2CacheSize", 0))

    def _last_cache_bytes(self) -> int:
        return AMD_LAST_CACHE_BYTES if self.cupy.cuda.runtime.is_hip else self._l2_bytes()

    def views(self, count: int, shape: tuple[int, ...], dtype: Any) -> list[Any]:
        """Return adjacent arrays in the scratch memory."""
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if count * n_bytes > self.scratch.nbytes:
            raise ProbeUnavailableError(self.device.gpu, f"cannot spare {count * n_bytes >> 20} MiB")
        return [
            self.scratch[place * n_bytes : (place + 1) * n_bytes].view(dtype).reshape(shape) for place in range(count)
        ]


class GpuProbe(Probe):
    """A probe that shares its memory with the other probes of its device."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace.device)
        self.workspace = workspace
        self.cupy = workspace.cupy
