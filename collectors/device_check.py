"""Device check: all probes of one device, a few repeats each, and what its driver reported meanwhile.

``python -m laggard.collectors.device_check [NAME...]`` checks this machine's devices. It prints a line of JSON with all
their names, then one for each check. It is a process of its own because a call into a stuck driver may never return.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from laggard.collectors.causes import UNKNOWN, Cause, cause_of
from laggard.collectors.cuda_errors import is_of_the_device
from laggard.collectors.device import Device, GpuDevice, device_makers
from laggard.collectors.errors import NoDeviceError, ProbeUnavailableError
from laggard.collectors.faults import narrow_link
from laggard.collectors.missing_gpus import MissingGPUs, why_missing
from laggard.collectors.probes import probes_of
from laggard.collectors.probing import WarmUp, is_of_this_job, symptom_reader
from laggard.collectors.symptoms import DeviceStatus, Symptoms, board_uuid
from laggard.records import plain

REPEATS = 5  # of each probe, of which the fastest counts
ALL_DEVICES = "all"
"""Stands for a device's name where a problem concerns all devices of the machine."""


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The result of one device's check."""

    gpu: str  # which device
    model: str = ""
    uuid: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)  # readings by probe
    # The fastest reading of each probe, in the unit that people expect, and that unit
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    # Number of wrong results by probe; probes without any are left out
    wrong: dict[str, int] = field(default_factory=dict)
    warmed: bool = False  # whether the device was idle, so that it had to be warmed up first
    cause: Cause = UNKNOWN  # what the driver reported that would explain a slow device
    board: str = ""  # UUID of the whole GPU that it is, or is a slice of; empty if no driver says
    faults: tuple[str, ...] = ()  # what is wrong with it, however fast it is
    trouble: str = ""  # what is wrong with the device, if that is why there are no readings; else empty
    # Why it could not be checked, which says nothing about the device: an error of ours, a missing library, too little
    # memory. Empty if it was checked.
    failure: str = ""


def check_device(device: Device, repeats: int = REPEATS) -> DeviceCheck:
    """Run all probes of a device and return the result."""
    try:
        probes = probes_of(device)
    except ProbeUnavailableError as reason:
        return DeviceCheck(device.gpu, device.model, device.uuid, board=_board_of(device), failure=str(reason))
    reader = symptom_reader(device)
    before = reader.status() if reader else DeviceStatus(0.0)
    warmed = reader is not None and WarmUp(reader.is_idle)(probes[0])
    seconds: dict[str, list[float]] = {}
    figures: dict[str, tuple[float, str]] = {}
    wrong: dict[str, int] = {}
    for probe in probes:
        probe.prepare()
        seconds[probe.name] = [probe.seconds() for _ in range(repeats)]
        figures[probe.name] = probe.figure(min(seconds[probe.name])), probe.unit
        if n_wrong := probe.wrong_results():
            wrong[probe.name] = n_wrong
    after = reader.status(bus_in_use=True) if reader else before
    narrow = narrow_link(after.values, "width")  # all other faults can be read at any time: see boards.py
    return DeviceCheck(
        device.gpu,
        device.model,
        device.uuid,
        seconds,
        figures,
        wrong,
        warmed,
        cause=cause_of(Symptoms.between(before, after, is_of_this_job)) if reader else UNKNOWN,
        board=_board_of(device),
        faults=(narrow,) if narrow else (),
    )


def _board_of(device: Device) -> str:
    return board_uuid(device.bus_address) if isinstance(device, GpuDevice) else ""


def main(names: Sequence[str]) -> int:
    """Print the names of this machine's devices, check the named ones (or all), and print a line for each."""
    # After an error it stops: the driver may be of no more use to this process, so another one checks the rest.
    try:
        devices = device_makers()
    except NoDeviceError:
        return _report_missing(why_missing(os.environ))
    print(json.dumps(list(devices)), flush=True)
    for name in names or devices:
        check = _checked(name, devices[name])
        print(json.dumps(plain(check)), flush=True)
        if check.trouble or check.failure:
            return 1
    return 0


def _report_missing(found: MissingGPUs | None) -> int:
    print(json.dumps([] if found is None else [ALL_DEVICES]), flush=True)
    if found is not None:
        trouble, failure = (found.reason, "") if found.is_fault else ("", found.reason)
        print(json.dumps(plain(DeviceCheck(ALL_DEVICES, trouble=trouble, failure=failure))), flush=True)
    return 0


def _checked(name: str, make: Callable[[], Device]) -> DeviceCheck:
    try:
        return check_device(make())
    except Exception as error:  # noqa: BLE001 - it is passed on as the result
        reason = f"{type(error).__name__}: {error}"
        return DeviceCheck(name, trouble=reason) if is_of_the_device(error) else DeviceCheck(name, failure=reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
