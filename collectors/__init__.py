"""Readings: devices, the probes that time them, and collectors that run on every device of a launch.

What only a job needs is loaded on first use: beside a GPU the probes run without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from collectors.device import Device, local_device, local_devices

if TYPE_CHECKING:
    from collectors.gaps import Gaps
    from collectors.group import CollectorGroup

__all__ = ["CollectorGroup", "Device", "Gaps", "local_device", "local_devices"]

_HOMES = {"CollectorGroup": "collectors.group", "Gaps": "collectors.gaps"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        globals()[name] = getattr(import_module(_HOMES[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
