"""Symptoms of a device of this job: whose processes compute there is told by the job that they belong to."""

from __future__ import annotations

import os

import psutil

from collectors.device import Device, GpuDevice
from collectors.symptoms import SymptomReader
from kvstore.environment import ENDPOINT_FILE

__all__ = ["is_of_this_job", "symptom_reader"]


def symptom_reader(device: Device) -> SymptomReader | None:
    """Return what reads a device's symptoms; None where no driver tells any."""
    if not isinstance(device, GpuDevice):
        return None
    try:
        return SymptomReader(device.bus_address)
    except OSError:
        return None  # an AMD device, or a driver without NVML


def is_of_this_job(pid: int) -> bool:
    """Tell whether a process is of the job that this one is of: another user's never is."""
    try:
        theirs = psutil.Process(pid).environ().get(ENDPOINT_FILE)
    except psutil.AccessDenied:
        return False
    except psutil.NoSuchProcess:
        return True  # it has ended, or lives outside of our container: there is nobody to blame
    return pid == os.getpid() or theirs == os.environ.get(ENDPOINT_FILE, "no job")
