"""Readings: devices, the probes that time them, and collectors that run on every device of a launch.

Names are loaded on first use: a light module below this one loads neither NumPy nor a driver's library.

Words: a *board* is a whole GPU as NVIDIA's driver lists it, a device a board or a MIG slice of one. The *schedule*
says when a device's next probe is due; a device with *stride* 3 takes every third turn. *Intrusion* is the share of
its time that probes take. An *inline* probe is run by the program itself. A *symptom* is what the driver reports
around a probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.lazy import lazily

if TYPE_CHECKING:
    from laggard.collectors.device import VIRTUAL_DEVICES, Device, DeviceId, local_device, local_devices
    from laggard.collectors.errors import (
        CollectorError,
        DeviceError,
        DeviceLostError,
        DriverUnavailableError,
        NoClusterError,
        NoDeviceError,
        ProbeUnavailableError,
        UnknownNodeError,
    )
    from laggard.collectors.group import CollectorGroup
    from laggard.collectors.inline_probe import InlineProbe
    from laggard.collectors.metrics.gpu import device_readers
    from laggard.collectors.ray_actors import node_strategy
    from laggard.collectors.sections import section

__all__ = [
    "VIRTUAL_DEVICES",
    "CollectorError",
    "CollectorGroup",
    "Device",
    "DeviceError",
    "DeviceId",
    "DeviceLostError",
    "DriverUnavailableError",
    "InlineProbe",
    "NoClusterError",
    "NoDeviceError",
    "ProbeUnavailableError",
    "UnknownNodeError",
    "device_readers",
    "local_device",
    "local_devices",
    "node_strategy",
    "section",
]

_HOMES = {
    "CollectorGroup": "group",
    "InlineProbe": "inline_probe",
    "device_readers": "metrics.gpu",
    "node_strategy": "ray_actors",
    "section": "sections",
    **dict.fromkeys(("VIRTUAL_DEVICES", "Device", "DeviceId", "local_device", "local_devices"), "device"),
}


__getattr__ = lazily(__name__, {name: f"{__name__}.{_HOMES.get(name, 'errors')}" for name in __all__})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
