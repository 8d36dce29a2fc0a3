"""Symptoms: what NVML reports about a device before and after a round of probes, from which a cause is inferred.

What a device or its driver does not report is left out, never reported as 0.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml as nvml

from laggard.collectors.errors import DriverUnavailableError
from laggard.collectors.metrics.nvml import field_values, nvml_handle

_log = logging.getLogger("laggard.collectors")

_SOLDERED = "SXM"  # in the model's name: its links lead to the baseboard
LINKS_PER_BRIDGE = 4  # NVIDIA, NVLink bridge installation guides for A100 and H100 boards
IDLE_CLOCK = 0.6  # of the maximum: even a throttled clock is above this on a busy device, and below it on an idle one

# Counters, and cumulative times in nanoseconds for which the clock was held back. The names are ours; for the meaning
# see NVIDIA's NVML API reference, "Field Value Enums".
_COUNTERS: Mapping[int, str] = {
    nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: "held_by_power_cap_ns",
    nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: "held_by_heat_ns",
    nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: "held_by_heat_hardware_ns",
    nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: "held_by_power_brake_ns",
    nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: "pcie_replays",
    nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: "ecc_corrected",
    nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: "ecc_uncorrected",
    nvml.NVML_FI_DEV_REMAPPED_PENDING: "remap_pending",
    nvml.NVML_FI_DEV_REMAPPED_FAILURE: "remap_failed",
    nvml.NVML_FI_DEV_RETIRED_PENDING: "pages_retiring",
    nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: "nvlink_replays",
    nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "nvlink_recoveries",
    nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "nvlink_crc_errors",
}

Value = Callable[[Any], float]
_VALUES: Mapping[str, Value] = {
    "sm_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM),
    "temperature_c": lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),
    "power_w": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "power_limit_w": lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "power_limit_default_w": lambda h: nvml.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000,
}
# An idle link may drop to a lower generation, so these are only read while it is in use.
_BUS_VALUES: Mapping[str, Value] = {
    "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie_width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth,
    "pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie_generation_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
}


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What NVML reports about a device at one moment."""

    time_s: float  # on the monotonic clock
    values: Mapping[str, float] = field(default_factory=dict)  # by name, with the unit in it
    processes: frozenset[int] = frozenset()  # PIDs of the processes that compute on the device
    links_down: tuple[int, ...] = ()  # the device's NVLinks that are not active
    xids: tuple[int, ...] = ()  # XID errors that the driver has reported since the previous status


@dataclass(frozen=True, slots=True)
class Symptoms:
    """What happened to a device between two readings of its status."""

    seconds: float  # time between the two
    now: Mapping[str, float] = field(default_factory=dict)  # values after the round, by name
    risen: Mapping[str, float] = field(default_factory=dict)  # by how much each counter rose during the round
    foreign_pids: tuple[int, ...] = ()  # PIDs of processes of other jobs that compute on the device
    links_down: tuple[int, ...] = ()  # NVLinks that are not active
    xids: tuple[int, ...] = ()  # XID errors that the driver has reported since the status before the round

    @classmethod
    def between(cls, before: DeviceStatus, after: DeviceStatus, is_ours: Callable[[int], bool]) -> Symptoms:
        """Compare two readings of its status of a device; ``is_ours`` tells whether a process belongs to this job."""
        risen = {
            name: after.values[name] - before.values[name]
            for name in _COUNTERS.values()
            if name in after.values and name in before.values
        }
        return cls(
            seconds=after.time_s - before.time_s,
            now=after.values,
            risen=risen,
            foreign_pids=tuple(sorted(pid for pid in after.processes if not is_ours(pid))),
            links_down=after.links_down,
            xids=(*before.xids, *after.xids),
        )

    def held_share(self, *names: str) -> float:
        """Return the share of the time, 0 to 1, for which the clock was held back for these reasons."""
        held_ns = sum(self.risen.get(name, 0.0) for name in names)
        return min(1.0, held_ns / (self.seconds * 1e9)) if self.seconds > 0 else 0.0


class SymptomReader:
    """Reads one NVIDIA device's status."""

    def __init__(self, name: str) -> None:
        self._events: Any = None
        try:
            nvml.nvmlInit()
            self._handle = nvml_handle(name)
        except nvml.NVMLError as error:
            raise DriverUnavailableError(name, str(error)) from error
        self._model = ""
        with contextlib.suppress(nvml.NVMLError):
            self._model = str(nvml.nvmlDeviceGetName(self._handle))
        with contextlib.suppress(nvml.NVMLError):  # a MIG slice has no events
            self._events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, self._events)

    def status(self, *, bus_in_use: bool = False) -> DeviceStatus:
        """Read everything that is supported; the bus's width and generation only if it was just in use."""
        handle = self._handle
        values: dict[str, float] = {}
        for name, ask in {**_VALUES, **(_BUS_VALUES if bus_in_use else {})}.items():
            with contextlib.suppress(nvml.NVMLError):
                values[name] = float(ask(handle))
        with contextlib.suppress(nvml.NVMLError):
            values |= {_COUNTERS[number]: value for number, value in field_values(handle, list(_COUNTERS))}
        processes: frozenset[int] = frozenset()
        with contextlib.suppress(nvml.NVMLError):
            processes = frozenset(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        links_down = missing_links(link_states(handle), self._model)
        return DeviceStatus(time.monotonic(), values, processes, links_down, tuple(self._xids()))

    def utilisation(self) -> int | None:
        """Return for how much of the last second or less the device was in use, in percent; None if not reported."""
        try:
            return int(nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except nvml.NVMLError:
            return None

    def is_idle(self) -> bool:
        """Tell whether the clock is as low as that of an idle device; False if the driver does not report it."""
        try:
            clock, highest = (_VALUES[name](self._handle) for name in ("sm_clock_mhz", "sm_clock_max_mhz"))
        except nvml.NVMLError:
            return False
        return 0 < clock < IDLE_CLOCK * highest

    def _xids(self) -> Iterator[int]:
        with contextlib.suppress(nvml.NVMLError):  # a timeout ends the list
            while self._events is not None:
                yield int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData)


def link_states(handle: Any) -> list[bool]:
    """Return whether each of a device's NVLinks is active."""
    active: list[bool] = []
    with contextlib.suppress(nvml.NVMLError):  # the first missing link ends the list
        active.extend(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
    return active


def missing_links(active: Sequence[bool], model: str) -> tuple[int, ...]:
    """Return which links should be active and are not."""
    # Without any, the board has no bridge, or its links are switched off, as MIG does. Boards in slots are linked by
    # bridges of four links each: whole bridges that are not there are no fault.
    down = tuple(link for link, is_active in enumerate(active) if not is_active)
    has_bridges = _SOLDERED not in model and len(active) % LINKS_PER_BRIDGE == 0
    return () if not any(active) or (has_bridges and len(down) % LINKS_PER_BRIDGE == 0) else down


def board_uuid(name: str) -> str:
    """Return the UUID of a whole GPU; empty if no driver reports it."""
    try:
        nvml.nvmlInit()
        return str(nvml.nvmlDeviceGetUUID(nvml_handle(name)))
    except nvml.NVMLError as error:
        _log.debug("gpu %s has no UUID: %s", name, error)
        return ""


def board_power_limit_w(name: str) -> float | None:
    """Return the board's factory power limit; None if the driver does not report it."""
    # The limit in force may have been lowered: that is a cause of slowness, not another kind of device.
    try:
        nvml.nvmlInit()
        return float(nvml.nvmlDeviceGetPowerManagementDefaultLimit(nvml_handle(name))) / 1000
    except nvml.NVMLError as error:
        _log.debug("gpu %s has no power limit: %s", name, error)
        return None
