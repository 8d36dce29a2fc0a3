"""The metrics that laggard collects: name, unit, meaning, and the names that other tools use.

Metrics of nodes and devices that Dragon also has keep Dragon's names. ``/metrics`` uses the names and units of
node_exporter and dcgm-exporter for metrics that these have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

EVENTS = "laggard.events"
"""Name of the metric under which events (XIDs, verdicts, launches) can be queried; its answers have annotations."""

STEP = "step"
"""Name of the metric that says at which step of the training a process is, with the tags of what it sends there."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    unit: str  # empty for plain numbers
    meaning: str
    exported: str
    kind: Literal["gauge", "counter"] = "gauge"  # a counter only rises
    scale: float = 1.0  # factor from `unit` to the unit of the exported metric


_counter = partial(Metric, kind="counter")

_LINKS = (
    Metric("link.send_s", "s", "Time of a transfer to a peer", "laggard_link_send_seconds"),
    Metric("link.transfer_bytes", "bytes", "Size of a transfer", "laggard_link_transfer_bytes"),
    Metric("link.leaf_send_s", "s", "Time of a transfer to a leaf switch's node", "laggard_link_leaf_send_seconds"),
    Metric("link.leaf", "", "1: the tag names the node's leaf switch", "laggard_link_leaf"),
)

NODE_METRICS = (
    Metric("load_average", "", "Load average of one minute", "node_load1"),
    Metric("used_RAM", "%", "Memory in use", "laggard_node_memory_used_ratio", scale=0.01),
    Metric("cpu_percent", "%", "Time that the processors were busy", "laggard_node_cpu_busy_ratio", scale=0.01),
    Metric("num_running_processes", "", "Processes of the job's user", "laggard_node_user_processes"),
    Metric("memory_available", "bytes", "Memory available to programs", "node_memory_MemAvailable_bytes"),
    _counter("network_receive", "bytes", "Received over the network", "node_network_receive_bytes_total"),
    _counter("network_transmit", "bytes", "Sent over the network", "node_network_transmit_bytes_total"),
    _counter("network_errors", "", "Packets lost or damaged", "laggard_node_network_errors_total"),
    _counter("disk_read", "bytes", "Read from disks", "node_disk_read_bytes_total"),
    _counter("disk_written", "bytes", "Written to disks", "node_disk_written_bytes_total"),
    Metric("cgroup_memory", "bytes", "Memory of the job's control group", "laggard_cgroup_memory_current_bytes"),
    Metric("cgroup_memory_limit", "bytes", "Limit on that memory", "laggard_cgroup_memory_max_bytes"),
    Metric("cgroup_cpu_limit", "cores", "Limit on the group's processor time", "laggard_cgroup_cpu_max_cores"),
    _counter("cgroup_throttled", "s", "Time the group was throttled", "laggard_cgroup_throttled_seconds_total"),
    _counter("cgroup_oom_kills", "", "Processes killed for lack of memory", "laggard_cgroup_oom_kills_total"),
    *(
        _counter(
            f"pressure_{name}",
            "s",
            f"Time that any process waited for {what}",
            f"node_pressure_{name}_waiting_seconds_total",
        )
        for name, what in (("cpu", "a processor"), ("memory", "memory"), ("io", "disks"))
    ),
)

_DEVICE = (
    Metric("DeviceUtilization", "%", "Time that a kernel was running", "DCGM_FI_DEV_GPU_UTIL"),
    Metric("DeviceMemoryUtilization", "%", "Device memory in use", "laggard_gpu_memory_used_ratio", scale=0.01),
    Metric("DevicePowerUsage", "W", "Power drawn", "DCGM_FI_DEV_POWER_USAGE"),
    Metric("DeviceMemoryUsed", "bytes", "Device memory in use", "DCGM_FI_DEV_FB_USED", scale=1 / 2**20),
    Metric("DeviceMemoryBusy", "%", "Time that device memory was read or written", "DCGM_FI_DEV_MEM_COPY_UTIL"),
    Metric("DevicePowerLimit", "W", "Power limit in force", "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    _counter("DeviceEnergy", "J", "Energy used", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", scale=1000.0),
    Metric("DeviceTemperature", "°C", "Temperature of the GPU", "DCGM_FI_DEV_GPU_TEMP"),
    Metric("DeviceMemoryTemperature", "°C", "Temperature of its memory", "DCGM_FI_DEV_MEMORY_TEMP"),
    Metric("DeviceSmClock", "MHz", "Clock of the multiprocessors", "DCGM_FI_DEV_SM_CLOCK"),
    Metric("DeviceMemoryClock", "MHz", "Clock of the memory", "DCGM_FI_DEV_MEM_CLOCK"),
    Metric("DeviceClockEventReasons", "", "Why the clocks are reduced, a bit mask", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    _counter("DevicePcieTransmit", "bytes", "Sent over PCIe", "laggard_gpu_pcie_transmit_bytes_total"),
    _counter("DevicePcieReceive", "bytes", "Received over PCIe", "laggard_gpu_pcie_receive_bytes_total"),
    _counter("DevicePcieReplays", "", "PCIe packets sent again", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    _counter("DeviceNvlinkTransmit", "bytes", "Sent over NVLink", "laggard_gpu_nvlink_transmit_bytes_total"),
    _counter("DeviceNvlinkReceive", "bytes", "Received over NVLink", "laggard_gpu_nvlink_receive_bytes_total"),
    _counter("DeviceEccCorrected", "", "Memory errors corrected", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
    _counter("DeviceEccUncorrected", "", "Memory errors not corrected", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    Metric("DeviceRemappedRows", "", "Memory rows remapped after errors", "laggard_gpu_remapped_rows"),
    Metric("DeviceRemapPending", "", "1: rows wait for a reset to be remapped", "laggard_gpu_remap_pending"),
    Metric("DeviceRemapFailed", "", "1: a row could not be remapped", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    _counter("DeviceXids", "", "Errors that the driver reported (XID)", "laggard_gpu_xids_total"),
    Metric("DeviceSmActive", "%", "Time multiprocessors were active", "DCGM_FI_PROF_SM_ACTIVE", scale=0.01),
    Metric("DeviceSmOccupancy", "%", "Resident warps, of the maximum", "DCGM_FI_PROF_SM_OCCUPANCY", scale=0.01),
    Metric("DeviceTensorActive", "%", "Time tensor cores were active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", scale=0.01),
    Metric("DeviceDramActive", "%", "Memory bandwidth in use", "DCGM_FI_PROF_DRAM_ACTIVE", scale=0.01),
)

_OWN = (
    Metric("db_size", "MB", "Size of the node's sample store", "laggard_store_bytes", scale=1e6),
    Metric("telemetry_samples", "", "Samples in the node's store", "laggard_store_samples"),
    Metric("telemetry_series", "", "Series in the node's store", "laggard_store_series"),
    _counter("telemetry_dropped", "", "Samples dropped for lack of room", "laggard_samples_dropped_total"),
    Metric("collector_lag", "s", "How late the last reading began", "laggard_collector_lag_seconds"),
    Metric("collector_duration", "s", "How long the last reading took", "laggard_collector_duration_seconds"),
    _counter("collector_missed", "", "Readings that were skipped for being late", "laggard_collector_missed_total"),
    _counter("collector_cpu", "s", "Processor time of the node's agent", "laggard_collector_cpu_seconds_total"),
    Metric("ProcessDeviceMemory", "bytes", "Device memory of a process", "laggard_process_gpu_memory_bytes"),
    Metric("ProcessDeviceUtilization", "%", "Device time of a process", "laggard_process_gpu_busy_ratio", scale=0.01),
)

CATALOGUE: Mapping[str, Metric] = {metric.name: metric for metric in (*_LINKS, *NODE_METRICS, *_DEVICE, *_OWN)}

_SERVED = (
    Metric("laggard.node_up", "", "1: the node's telemetry answers; 0: it does not", "laggard_node_up"),
    Metric("laggard.node_lag", "s", "Time its last answer took, or that it has owed one", "laggard_node_lag_seconds"),
    Metric(
        "laggard.node_clock_skew",
        "s",
        "How far the node's clock is ahead of the primary's",
        "laggard_node_clock_skew_seconds",
    ),
    _counter(
        "laggard.node_dropped",
        "",
        "Samples that the node's store refused or dropped early",
        "laggard_node_samples_dropped_total",
    ),
    Metric("laggard.launch", "", "Number of the current launch", "laggard_launch"),
    Metric(
        "laggard.slow_since",
        "s",
        "Time of the newest verdict that found the device slow",
        "laggard_device_slow_timestamp_seconds",
    ),
    Metric(
        "laggard.progress",
        "s",
        "Time of the job's last commit to State or reported step",
        "laggard_progress_timestamp_seconds",
    ),
)

SERVED: Mapping[str, Metric] = {metric.name: metric for metric in _SERVED}
"""What the server itself knows of the job, for ``/metrics``: it cannot be queried over time."""
