"""Readings: devices, the probes that time them, and collectors that run on every device of a launch."""

from __future__ import annotations

from collectors.device import Device, local_device, local_devices
from collectors.gaps import Gaps
from collectors.group import CollectorGroup

__all__ = ["CollectorGroup", "Device", "Gaps", "local_device", "local_devices"]
