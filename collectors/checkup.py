"""A checkup: all probes of one device, a few repeats each, with the driver's account of what happened meanwhile.

``python -m collectors.checkup [NAME...]`` checks this machine's devices and prints a line of JSON for each, after one
with all their names. It is a process of its own because a call into a stuck driver never returns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from collectors.causes import UNKNOWN, cause_of
from collectors.device import Device, DeviceError, device_makers
from collectors.idle import WarmUp
from collectors.job_symptoms import symptom_reader
from collectors.probes import ProbeUnavailableError, probes_of
from collectors.symptoms import Snapshot, Symptoms

__all__ = ["Checkup", "check_up"]

REPEATS = 5
DRIVER = Path("/proc/driver/nvidia")


@dataclass(frozen=True, slots=True)
class Checkup:
    """What a device's probes have read.

    Attributes
    ----------
    gpu, model, uuid
        Which device.
    seconds
        Readings by probe.
    figures
        The fastest reading of each probe as people know it, with its unit.
    wrong
        By probe, how many results were wrong; probes without any are left out.
    warmed
        Whether the device's clock was low because it was idle, so that it was warmed up first.
    cause
        What the driver tells that would explain a slowness.
    trouble
        Why there are no readings, if there are none.
    """

    gpu: str
    model: str = ""
    uuid: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    warmed: bool = False
    cause: str = UNKNOWN
    trouble: str = ""

    def to_json(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read it back from :meth:`to_json`'s text."""
        told = json.loads(text)
        figures = {probe: (value, unit) for probe, (value, unit) in told.pop("figures").items()}
        return cls(**told, figures=figures)


def check_up(device: Device, repeats: int = REPEATS) -> Checkup:
    """Run all probes of a device."""
    try:
        probes = probes_of(device)
    except ProbeUnavailableError as reason:
        return Checkup(device.gpu, device.model, device.uuid, trouble=str(reason))
    reader = symptom_reader(device)
    before = reader.snapshot() if reader else Snapshot(0.0)
    warmed = reader is not None and WarmUp(reader.idles)(probes[0])
    seconds: dict[str, list[float]] = {}
    figures: dict[str, tuple[float, str]] = {}
    wrong: dict[str, int] = {}
    for probe in probes:
        probe.prepare()
        seconds[probe.name] = [probe.seconds() for _ in range(repeats)]
        figures[probe.name] = probe.figure(min(seconds[probe.name])), probe.unit
        if n_wrong := probe.wrong_results():
            wrong[probe.name] = n_wrong
    cause = UNKNOWN
    if reader:
        cause = cause_of(Symptoms.between(before, reader.snapshot(bus_in_use=True), lambda pid: pid == os.getpid()))
    return Checkup(device.gpu, device.model, device.uuid, seconds, figures, wrong, warmed, cause)


def main(names: Sequence[str]) -> int:
    """Print the names of the devices here; then check those that are asked for, and print a line for each."""
    devices = _devices()
    print(json.dumps(list(devices)), flush=True)
    for name in names or devices:
        print(check_up(devices[name]()).to_json(), flush=True)
    return 0


def _devices() -> dict[str, Callable[[], Device]]:
    try:
        return device_makers()
    except DeviceError:
        if DRIVER.exists():
            sys.stderr.write(
                "there is an NVIDIA driver here, but CuPy finds no GPU: install laggard's extra cuda12 or cuda13\n"
            )
        return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
