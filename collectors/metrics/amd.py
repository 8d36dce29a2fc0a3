"""Readings of AMD devices through amdsmi, the library that comes with ROCm (optional)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from laggard.collectors.errors import DeviceReadError
from laggard.collectors.metrics.reading_loop import Reading

_log = logging.getLogger("laggard.collectors")

_METRICS: Mapping[str, tuple[str, float]] = {
    "average_gfx_activity": ("DeviceUtilization", 1),
    "average_umc_activity": ("DeviceMemoryBusy", 1),
    "current_socket_power": ("DevicePowerUsage", 1),
    "average_socket_power": ("DevicePowerUsage", 1),
    "temperature_hotspot": ("DeviceTemperature", 1),
    "temperature_mem": ("DeviceMemoryTemperature", 1),
    "current_gfxclk": ("DeviceSmClock", 1),
    "current_uclk": ("DeviceMemoryClock", 1),
    # In units of 15.259 microjoules, according to the kernel's documentation of the amdgpu driver.
    "energy_accumulator": ("DeviceEnergy", 15.259e-6),
    "pcie_replay_count_acc": ("DevicePcieReplays", 1),
}
# What the library returns for a missing sensor: all ones, in 16, 32 or 64 bits.
_ABSENT = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


class AmdReader:
    """Reads one AMD device."""

    def __init__(self, gpu: str, handle: Any, library: Any) -> None:
        self.gpu = gpu
        self._handle = handle  # the device's handle, and the library that it belongs to
        self._library = library

    def read(self) -> Iterator[Reading]:
        """Yield the device's readings."""
        try:
            found = self._library.amdsmi_get_gpu_metrics_info(self._handle)
            memory = self._library.amdsmi_get_gpu_vram_usage(self._handle)
        except self._library.AmdSmiException as error:
            raise DeviceReadError(self.gpu, str(error)) from error
        seen = set()
        for name, (metric, scale) in _METRICS.items():
            value = found.get(name)
            if isinstance(value, int | float) and value not in _ABSENT and metric not in seen:
                seen.add(metric)
                yield Reading(metric, value * scale)
        used, total = memory.get("vram_used"), memory.get("vram_total")
        if used is not None and total:
            yield Reading("DeviceMemoryUsed", used * 2**20)
            yield Reading("DeviceMemoryUtilization", round(100 * used / total, 2))

    def processes(self) -> Iterator[Reading]:
        """Yield the device memory of each process, with the tag ``pid``."""
        try:
            listed = self._library.amdsmi_get_gpu_process_list(self._handle)
        except self._library.AmdSmiException:
            return
        for process in listed:
            tags = {"pid": str(process["pid"])}
            if (used := process.get("memory_usage", {}).get("vram_mem")) is not None:
                yield Reading("ProcessDeviceMemory", used, tags)


def amd_readers(names: Sequence[str] | None) -> list[AmdReader]:
    """Return a reader for each AMD device; none without the library or a device."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError):  # without ROCm its import fails in several ways
        return []
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException as error:
        _log.info("no AMD devices: %s", error)
        return []
    numbered = {str(number): handle for number, handle in enumerate(handles)}
    chosen = list(numbered) if names is None else [name for name in names if name in numbered]
    return [AmdReader(name, numbered[name], amdsmi) for name in chosen]
