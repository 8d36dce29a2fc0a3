"""Readings of NVIDIA devices through NVML (nvidia-ml-py).

A reading that a device or driver does not support is tried once and left out from then on. Clock-event reasons, field
values and GPM are explained in NVIDIA's NVML API reference.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml as nvml

from laggard.collectors.errors import DeviceLostError
from laggard.collectors.metrics.reading_loop import Reading

_log = logging.getLogger("laggard.collectors")

EVENT_WAIT_MS = 1000
# Prefix of CUDA's names for MIG slices; NVML has no utilisation for these.
_MIG = "MIG-"
_NEVER = (
    nvml.NVML_ERROR_NOT_SUPPORTED,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    nvml.NVML_ERROR_INVALID_ARGUMENT,
    nvml.NVML_ERROR_NO_PERMISSION,
)
_GONE = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED)

_FIELDS: dict[int, tuple[str, float]] = {
    nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: ("DeviceEnergy", 1e-3),
    nvml.NVML_FI_DEV_MEMORY_TEMP: ("DeviceMemoryTemperature", 1),
    nvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: ("DevicePowerLimit", 1e-3),
    nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: ("DevicePcieReplays", 1),
    nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: ("DevicePcieTransmit", 1),
    nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: ("DevicePcieReceive", 1),
    nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: ("DeviceEccCorrected", 1),
    nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: ("DeviceEccUncorrected", 1),
    nvml.NVML_FI_DEV_REMAPPED_UNC: ("DeviceRemappedRows", 1),
    nvml.NVML_FI_DEV_REMAPPED_PENDING: ("DeviceRemapPending", 1),
    nvml.NVML_FI_DEV_REMAPPED_FAILURE: ("DeviceRemapFailed", 1),
}
ALL_LINKS = (
    0xFFFFFFFF  # the scope of a field that sums over a device's NVLinks (NVML API Reference, Field Value Queries)
)
_LINK_FIELDS: dict[int, tuple[str, float]] = {
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: ("DeviceNvlinkTransmit", 1024),
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: ("DeviceNvlinkReceive", 1024),
}
_GPM: dict[int, str] = {
    nvml.NVML_GPM_METRIC_SM_UTIL: "DeviceSmActive",
    nvml.NVML_GPM_METRIC_SM_OCCUPANCY: "DeviceSmOccupancy",
    nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "DeviceTensorActive",
    nvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "DeviceDramActive",
}
_GPM_MIN_INTERVAL_S = 0.1

Query = Callable[[], Iterator[Reading]]


class NvmlReader:
    """Reads one NVIDIA device."""

    def __init__(
        self, gpu: str, handle: Any, *, driver: Any = nvml, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.gpu = gpu
        self._driver = driver  # what answers for NVML, and tells the time
        self._clock = clock
        self.handle = handle  # nVML's handle of it
        self.xids = 0
        self._queries: list[Query] = [self._utilization, self._memory, self._power, self._temperature]
        self._queries += [self._clocks, self._clock_reasons, self._field_values, self._gpm]
        self._of_processes: list[Query] = [self._process_memory, self._process_utilization]
        self._gpm_samples: tuple[Any, Any] | None = None
        self._gpm_taken_s = 0.0
        self._seen_us = 0

    def read(self) -> Iterator[Reading]:
        """Yield the device's readings."""
        yield from self._answers(self._queries)
        yield Reading("DeviceXids", self.xids)

    def processes(self) -> Iterator[Reading]:
        """Yield each process's use of the device, with the tag ``pid``."""
        yield from self._answers(self._of_processes)

    def _answers(self, queries: list[Query]) -> Iterator[Reading]:
        """Yield the answers to some queries; those that the device will never answer are dropped."""
        for query in list(queries):
            try:
                yield from query()
            except nvml.NVMLError as error:
                if error.value in _GONE:
                    raise DeviceLostError(self.gpu, str(error)) from error
                if error.value in _NEVER:
                    queries.remove(query)

    def _utilization(self) -> Iterator[Reading]:
        rates = self._driver.nvmlDeviceGetUtilizationRates(self.handle)
        yield Reading("DeviceUtilization", rates.gpu)
        yield Reading("DeviceMemoryBusy", rates.memory)

    def _memory(self) -> Iterator[Reading]:
        memory = self._driver.nvmlDeviceGetMemoryInfo(self.handle)
        yield Reading("DeviceMemoryUsed", memory.used)
        if memory.total:
            yield Reading("DeviceMemoryUtilization", round(100 * memory.used / memory.total, 2))

    def _power(self) -> Iterator[Reading]:
        yield Reading("DevicePowerUsage", self._driver.nvmlDeviceGetPowerUsage(self.handle) / 1000)

    def _temperature(self) -> Iterator[Reading]:
        celsius = self._driver.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU)
        yield Reading("DeviceTemperature", celsius)

    def _clocks(self) -> Iterator[Reading]:
        yield Reading("DeviceSmClock", self._driver.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_SM))
        yield Reading("DeviceMemoryClock", self._driver.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_MEM))

    def _clock_reasons(self) -> Iterator[Reading]:
        yield Reading("DeviceClockEventReasons", self._driver.nvmlDeviceGetCurrentClocksEventReasons(self.handle))

    def _field_values(self) -> Iterator[Reading]:
        asked: list[int | tuple[int, int]] = [*_FIELDS, *((field, ALL_LINKS) for field in _LINK_FIELDS)]
        for number, value in field_values(self.handle, asked, self._driver):
            metric, scale = (_FIELDS | _LINK_FIELDS)[number]
            yield Reading(metric, value * scale)

    def _gpm(self) -> Iterator[Reading]:
        if self._gpm_samples is None:
            if not self._driver.nvmlGpmQueryDeviceSupport(self.handle).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            self._gpm_samples = self._driver.nvmlGpmSampleAlloc(), self._driver.nvmlGpmSampleAlloc()
            self._take_gpm_sample()
            return
        if self._clock() - self._gpm_taken_s < _GPM_MIN_INTERVAL_S:
            return
        self._take_gpm_sample()
        older, newer = self._gpm_samples
        asked = self._driver.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_GPM)
        asked.sample1, asked.sample2 = older, newer
        for place, metric_id in enumerate(_GPM):
            asked.metrics[place].metricId = metric_id
        self._driver.nvmlGpmMetricsGet(asked)
        for found in asked.metrics[: len(_GPM)]:
            if found.nvmlReturn == nvml.NVML_SUCCESS:
                yield Reading(_GPM[found.metricId], round(found.value, 2))

    def _take_gpm_sample(self) -> None:
        assert self._gpm_samples is not None  # noqa: S101 - for the type checker
        older, newer = self._gpm_samples
        self._driver.nvmlGpmSampleGet(self.handle, older)
        self._gpm_samples = newer, older
        self._gpm_taken_s = self._clock()

    def _process_memory(self) -> Iterator[Reading]:
        for process in self._driver.nvmlDeviceGetComputeRunningProcesses(self.handle):
            if process.usedGpuMemory is not None:
                yield Reading("ProcessDeviceMemory", process.usedGpuMemory, {"pid": str(process.pid)})

    def _process_utilization(self) -> Iterator[Reading]:
        for process in self._driver.nvmlDeviceGetProcessUtilization(self.handle, self._seen_us):
            self._seen_us = max(self._seen_us, process.timeStamp)
            yield Reading("ProcessDeviceUtilization", process.smUtil, {"pid": str(process.pid)})


def nvml_readers(
    names: Sequence[str] | None, on_xid: Callable[[str, int], None], driver: Any = nvml
) -> list[NvmlReader]:
    """Return a reader for each NVIDIA device; none without a driver."""
    try:
        driver.nvmlInit()
        chosen = [str(number) for number in range(driver.nvmlDeviceGetCount())] if names is None else names
    except nvml.NVMLError as error:
        _log.info("no NVIDIA devices: %s", error)
        return []
    readers = []
    for name in chosen:
        try:
            readers.append(NvmlReader(name, nvml_handle(name, driver), driver=driver))
        except nvml.NVMLError as error:
            _log.warning("no metrics of gpu %s: %s", name, error)
    for reader in readers:
        threading.Thread(target=_watch_for_xids, args=(reader, on_xid, driver), name="xids", daemon=True).start()
    return readers


def nvml_handle(name: str, driver: Any = nvml) -> Any:
    """Return NVML's handle of a device, given its PCI address or its CUDA name, or raise an NVMLError."""
    if ":" in name:
        return driver.nvmlDeviceGetHandleByPciBusId(name)
    if name.startswith(_MIG) or not name.isdigit():
        return driver.nvmlDeviceGetHandleByUUID(name)
    return driver.nvmlDeviceGetHandleByIndex(int(name))


def field_values(
    handle: Any, numbers: Sequence[int | tuple[int, int]], driver: Any = nvml
) -> Iterator[tuple[int, float]]:
    """Yield the number and value of each field that the device has; a field may have a scope, such as a link."""
    for found in driver.nvmlDeviceGetFieldValues(handle, list(numbers)):
        if found.nvmlReturn == nvml.NVML_SUCCESS:
            yield found.fieldId, _value_of(found)


def _value_of(found: Any) -> float:
    """Return a field's value, according to its declared type."""
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }
    return float(getattr(found.value, members.get(found.valueType, "ullVal")))


def _watch_for_xids(reader: NvmlReader, on_xid: Callable[[str, int], None], driver: Any) -> None:
    """Pass on a device's errors until it is lost; a MIG slice reports none."""
    try:
        events = driver.nvmlEventSetCreate()
        driver.nvmlDeviceRegisterEvents(reader.handle, nvml.nvmlEventTypeXidCriticalError, events)
        while True:
            try:
                event = driver.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            except nvml.NVMLError_Timeout:
                continue
            reader.xids += 1
            on_xid(reader.gpu, int(event.eventData))
    except nvml.NVMLError as error:
        _log.info("XID errors of gpu %s are not watched: %s", reader.gpu, error)
