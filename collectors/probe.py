"""Probes: short test kernels whose time tells how fast a device is now."""

from __future__ import annotations

from typing import Any

from collectors.device import Device, VirtualDevice

__all__ = ["GemmProbe"]

GPU_SIZE = 2048
VIRTUAL_SIZE = 768


class GemmProbe:
    """Square matrix product in single precision: 2 n^3 floating-point operations on 12 n^2 bytes.

    Its time follows the arithmetic rate of the device, and its wait for other kernels there. At n = 2048 that is
    17 Gflop on 50 MB; at n = 768, for a virtual device, 0.9 Gflop on 7 MB.

    Parameters
    ----------
    device
        Where to run; the arrays are made there, once.
    size
        n; by default some milliseconds' worth on that kind of device, longer than a waiting process takes to wake up.
    """

    def __init__(self, device: Device, size: int | None = None) -> None:
        n = size or (VIRTUAL_SIZE if isinstance(device, VirtualDevice) else GPU_SIZE)
        self._device = device
        self._module: Any = device.array_module
        self._left, self._right, self._product = device.run(lambda: self._arrays(n))
        self.seconds()  # the first run pays for loading and tuning the kernel

    def seconds(self) -> float:
        """Run once; return the seconds on the device's clock from submission to end."""
        return self._device.timed(lambda: self._module.matmul(self._left, self._right, out=self._product))[1]

    def _arrays(self, n: int) -> tuple[Any, Any, Any]:
        left = self._module.linspace(0, 1, n * n, dtype="float32").reshape(n, n)
        return left, left.T.copy(), self._module.empty_like(left)
