"""Why a machine with NVIDIA GPUs on its bus has none that can be used."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # the class of graphics and 3D controllers
_NEWER_DRIVER_NEEDED = 35  # CUDA's code


@dataclass(frozen=True, slots=True)
class MissingGPUs:
    """Why there is no GPU."""

    reason: str  # in words
    is_fault: bool  # whether something is wrong with the machine, rather than with what is installed or allowed


def why_missing(environ: Mapping[str, str], root: Path = Path("/")) -> MissingGPUs | None:
    """Return why CuPy finds none of this machine's NVIDIA GPUs; None if there are none, or none are wanted."""
    count = len(gpus_on_bus(root))
    if not count or "CUDA_VISIBLE_DEVICES" in environ:
        return None
    gpus = f"{count} NVIDIA GPU{'s' if count > 1 else ''} on the bus"
    if not (root / "proc/driver/nvidia/version").exists():
        return MissingGPUs(f"{gpus}, but their driver is not loaded", is_fault=True)
    if not any(root.glob("dev/nvidia[0-9]*")):
        return MissingGPUs(f"{gpus}, but this process may use none: there is no /dev/nvidia0", is_fault=False)
    return _by_cupy(gpus)


def _by_cupy(gpus: str) -> MissingGPUs:
    try:
        import cupy
    except ImportError as error:
        reason = f"{gpus}, but CuPy cannot be imported ({error}): install laggard's extra cuda12 or cuda13"
        return MissingGPUs(reason, is_fault=False)
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        reason = f"{gpus}, but their driver shows none: {error}"
        return MissingGPUs(reason, is_fault=error.status != _NEWER_DRIVER_NEEDED)
    return MissingGPUs(f"{gpus}, but their driver shows {count}", is_fault=True)


def gpus_on_bus(root: Path = Path("/")) -> list[Path]:
    """Return the NVIDIA GPUs on the bus, whether or not this process may use them."""
    return [device for device in root.glob("sys/bus/pci/devices/*") if _is_nvidia_gpu(device)]


def _is_nvidia_gpu(device: Path) -> bool:
    with contextlib.suppress(OSError):
        vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
        return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY)
    return False
