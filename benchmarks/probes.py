"""The probes: repeatability, distance from the hardware's peak, what they react to, and whether they mislead.

Runs on the machine's GPUs, or on virtual devices if there are none. All faults are contention: a neighbour, a separate
process, loads the device, its memory, its bus, or the host. Rounds alternate (no neighbour, each neighbour in turn, no
neighbour again), so that drift of the machine affects all equally. A reading is the fastest of three repeats, as in a
job.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.machine import description
from benchmarks.neighbour import KINDS, ONE_THREAD, Neighbour, kinds_on
from benchmarks.peaks import floor_s, peaks_of
from benchmarks.tables import table
from benchmarks.timings import device_names
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, Device, GpuDevice, gpu_names, local_devices
from laggard.collectors.probes import PROBE_NAMES, Probe, probes_of
from laggard.detectors import SlowGPUAnalysis, Verdict
from laggard.detectors.statistics.thresholds import GPU_MIN_SLOWDOWN, VIRTUAL_MIN_SLOWDOWN

__all__ = [
    "REPEATS",
    "Taken",
    "cell",
    "interleaved",
    "main",
    "min_slowdown_on",
    "report",
    "report_verdicts",
    "report_waits",
    "saturated",
    "seconds_of",
    "variation",
    "verdicts_of",
]

REPEATS = 3
IDLE, BUSY = "idle", "compute"  # the conditions in the first table
SERIES = 4  # judged together, at least
MUCH = 1.5
SPREADS = 3
MAD_TO_SIGMA = 1.4826  # for a normal distribution

Readings = Mapping[str, Sequence[float]]
"""Seconds of one probe, by condition: the fastest repeat of each round."""
Repeats = dict[str, list[float]]
"""Seconds of a round's repeats, by probe."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The fastest of a round's repeats.

    Attributes
    ----------
    seconds
        The reading.
    device_s, wall_s
        The repeat's time by the device's clock and by the host's.
    """

    seconds: float
    device_s: float
    wall_s: float

    @classmethod
    def from_probe(cls, probe: Probe) -> Taken:
        """Run a round's repeats."""
        probe.prepare()
        return min((cls._repeat(probe) for _ in range(REPEATS)), key=lambda taken: taken.seconds)

    @classmethod
    def _repeat(cls, probe: Probe) -> Taken:
        seconds = probe.seconds()
        return cls(seconds, probe.timing.device_s, probe.timing.wall_s)


AllTaken = Mapping[str, Mapping[str, Sequence[Taken]]]
"""By probe and condition."""


def main(argv: list[str]) -> int:
    """Run the benchmark and print its tables as Markdown; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks probes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds for each condition (default: %(default)s)")
    parser.add_argument(
        "--saturated-rounds", type=int, default=200, help="rounds with all devices busy (default: %(default)s)"
    )
    parser.add_argument(
        "--probes", default=",".join(PROBE_NAMES), metavar="NAME,NAME", help="probes to run (default: all)"
    )
    parser.add_argument(
        "--devices", type=int, default=SERIES, help="virtual devices, if there are no GPUs (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=7.0, help="time limit; further rounds are skipped (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all readings to FILE")
    options = parser.parse_args(argv)
    names = options.probes.split(",")
    if unknown := set(names) - set(PROBE_NAMES):
        parser.error(f"unknown probe {min(unknown)!r}: choose from {', '.join(PROBE_NAMES)}")
    if min(options.rounds, options.saturated_rounds, options.devices) < 1:
        parser.error("--rounds, --saturated-rounds and --devices must be at least 1")
    if not ONE_THREAD.items() <= os.environ.items():  # NumPy reads them when it is loaded
        os.execve(sys.executable, sys.orig_argv, os.environ | ONE_THREAD)  # noqa: S606 - this very command
    with tempfile.TemporaryDirectory() as folder:
        environ = {} if gpu_names() else {VIRTUAL_DEVICES: str(options.devices), VIRTUAL_DEVICE_DIR: folder}
        devices = local_devices(os.environ | environ)
        print(f"{description()}\n\nProbed: {devices[0].model}; a reading is the fastest of {REPEATS} repeats.")
        probes = [probes_of(device, names) for device in devices]
        if not probes[0]:
            parser.error(f"a device of model {devices[0].model!r} cannot run any of these probes")
        begun_s = time.monotonic()
        taken = interleaved(devices[0], probes[0], environ, rounds("idle and contended", options, begun_s, 0.5))
        readings = seconds_of(taken)
        report(devices[0], probes[0], readings)
        report_waits(devices[0], taken)
        busy = saturated(devices, probes, environ, rounds("saturated", options, begun_s, 1.0))
    report_verdicts(devices, busy, readings)
    if options.json:
        written = {"machine": description(), "model": devices[0].model, "interleaved": readings, "saturated": busy}
        options.json.write_text(json.dumps(written))
    return 0


def rounds(what: str, options: argparse.Namespace, begun_s: float, share: float) -> Iterable[int]:
    """Count rounds from 0, with a progress bar, until there are enough or a share of the time limit has passed."""
    count = options.saturated_rounds if what == "saturated" else options.rounds
    numbers: Iterable[int] = range(count)
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        pass  # a machine with GPUs may have only what the probes need
    else:
        numbers = track(numbers, f"{what:<20}", console=Console(stderr=True), transient=True)
    until_s = begun_s + 60 * share * options.minutes
    return takewhile(lambda number: number == 0 or time.monotonic() < until_s, numbers)


# ---------------------------------------------------------------------------------------------------------------------
# Readings


def repeats_of(probe: Probe) -> list[float]:
    """Return the seconds of one round's repeats."""
    probe.prepare()
    return [probe.seconds() for _ in range(REPEATS)]


def interleaved(
    device: Device, probes: Sequence[Probe], environ: Mapping[str, str], numbers: Iterable[int]
) -> AllTaken:
    """Return what was taken, by probe and condition: idle, and with each kind of neighbour."""
    found: dict[str, dict[str, list[Taken]]] = {}
    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:  # all of them load their libraries at once
            started = pool.map(lambda kind: Neighbour(kind, device.gpu, environ), kinds_on(device))
            neighbours = [stack.enter_context(neighbour) for neighbour in started]
        for number in _with_warm_up(numbers):
            for neighbour in (None, *neighbours):
                with neighbour.at_work() if neighbour else nullcontext():
                    for probe in probes:
                        reading = Taken.from_probe(probe)
                        if number is not None:
                            of_probe = found.setdefault(probe.name, {})
                            of_probe.setdefault(neighbour.kind if neighbour else IDLE, []).append(reading)
    return found


def seconds_of(taken: AllTaken) -> dict[str, dict[str, list[float]]]:
    """Return the readings alone."""
    return {
        probe: {condition: [one.seconds for one in several] for condition, several in by_condition.items()}
        for probe, by_condition in taken.items()
    }


def _with_warm_up(numbers: Iterable[int]) -> Iterator[int | None]:
    yield None  # an idle GPU's clock is low at first
    yield from numbers


def saturated(
    devices: Sequence[Device], probes: Sequence[Sequence[Probe]], environ: Mapping[str, str], numbers: Iterable[int]
) -> list[list[Repeats]]:
    """Return the repeats of each round, by series, while a neighbour keeps each device busy.

    With fewer than four devices, each device yields several series, one after the other in each round.
    """
    series = -(-SERIES // len(devices))

    def take(of_device: Sequence[Probe]) -> list[Repeats]:
        return [{probe.name: repeats_of(probe) for probe in of_device} for _ in range(series)]

    with ExitStack() as stack:
        for device in devices:
            stack.enter_context(stack.enter_context(Neighbour(BUSY, device.gpu, environ)).at_work())
        with ThreadPoolExecutor(len(devices)) as pool:
            return [[one for several in pool.map(take, probes) for one in several] for _ in numbers]


# ---------------------------------------------------------------------------------------------------------------------
# Judge


def variation(seconds: ArrayLike) -> float:
    """Return the coefficient of variation."""
    values = np.asarray(seconds, np.float64)
    return float(values.std() / values.mean())


def cell(fault: Sequence[float], idle: Sequence[float]) -> str:
    """Return the ratio of the medians, marked by how far the fault lies above idle.

    ``!!``: more than 1.5 times as long. ``!``: more than three robust spreads of the idle readings longer.
    """
    middle = float(np.median(idle))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(np.array(idle) - middle)))
    reading = float(np.median(fault))
    mark = " !!" if reading > MUCH * middle else " !" if reading > middle + SPREADS * spread else ""
    return f"{reading / middle:.2f}{mark}"


def verdicts_of(taken: Sequence[Sequence[Repeats]], probe: str, min_slowdown: float) -> list[Verdict]:
    """Judge one probe's rounds as a job's detector does: devices of one model, each on its own node."""
    names = device_names(len(taken[0]), 1)
    analysis = SlowGPUAnalysis(groups=dict.fromkeys(names, "one model"), min_slowdown=min_slowdown)
    return [
        verdict
        for one in taken
        for verdict in analysis.update({name: series[probe] for name, series in zip(names, one, strict=True)})
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Print


def report(device: Device, probes: Sequence[Probe], readings: Mapping[str, Readings]) -> None:
    """Print repeatability, distance from the floor, and what each probe reacts to."""
    count = len(readings[probes[0].name][IDLE])
    print(f"\n## Repeatability\n\n{count} rounds; busy: a neighbour multiplies matrices back to back.\n")
    head = ["probe", "CV idle", "CV busy", "median idle", "median busy", "unit"]
    print("\n".join(table(head, (_repeatability(probe, readings[probe.name]) for probe in probes))))

    print(
        "\n## Against the floor\n\nFloor: the work divided by the data sheet's peak, or the best reading of this run.\n"
    )
    head = ["probe", "median idle, ms", "floor, ms", "idle / floor", "source of the floor"]
    print("\n".join(table(head, (_floor(device, probe, readings[probe.name]) for probe in probes))))

    print(f"\n## Reaction\n\nMedian with a neighbour / median idle. !!: over {MUCH}; !: {SPREADS} spreads above.\n")
    rows = (
        [name, *(cell(found[kind], found[IDLE]) if kind in found else "-" for kind in KINDS)]
        for name, found in readings.items()
    )
    print("\n".join(table(["probe", *KINDS], rows)), flush=True)


def report_waits(device: Device, taken: AllTaken) -> None:
    """Print by which clock a neighbour is noticed, unless the device has only one."""
    if not isinstance(device, GpuDevice):
        return
    print("\n## What each clock counts\n\nMedians in ms; the neighbour multiplies matrices back to back.\n")
    rows = []
    for probe, found in taken.items():
        idle, busy = (found.get(condition, []) for condition in (IDLE, BUSY))
        device_ms, wall_ms = (
            [1e3 * float(np.median([getattr(one, clock) for one in several])) for several in (idle, busy)]
            for clock in ("device_s", "wall_s")
        )
        longer_ms = wall_ms[1] - wall_ms[0]
        counted = f"{(device_ms[1] - device_ms[0]) / longer_ms:.0%}" if longer_ms > 0.1 * wall_ms[0] else "-"
        rows.append([probe, *(f"{each:.3f}" for each in (*device_ms, *wall_ms)), counted])
    head = ["probe", "device, idle", "device, busy", "host, idle", "host, busy", "counted by events"]
    print("\n".join(table(head, rows)), flush=True)


def _repeatability(probe: Probe, found: Readings) -> list[str]:
    spreads = [f"{100 * variation(found[condition]):.1f} %" for condition in (IDLE, BUSY)]
    figures = [f"{probe.figure(float(np.median(found[condition]))):.4g}" for condition in (IDLE, BUSY)]
    return [probe.name, *spreads, *figures, probe.unit]


def _floor(device: Device, probe: Probe, found: Readings) -> list[str]:
    by_sheet = floor_s(probe, peaks_of(device.model))
    least_s = min(map(min, found.values())) if by_sheet is None else by_sheet
    idle_s = float(np.median(found[IDLE]))
    source = "best reading" if by_sheet is None else "data sheet"
    return [probe.name, f"{1e3 * idle_s:.3f}", f"{1e3 * least_s:.3f}", f"{idle_s / least_s:.2f}", source]


def min_slowdown_on(device: Device) -> float:
    """Return the smallest slowdown that matters to SlowGPUDetector on such a device."""
    return GPU_MIN_SLOWDOWN if isinstance(device, GpuDevice) else VIRTUAL_MIN_SLOWDOWN


def report_verdicts(
    devices: Sequence[Device], taken: Sequence[Sequence[Repeats]], readings: Mapping[str, Readings]
) -> None:
    """Print the detector's verdicts on devices that are all busy and healthy, and how busy their readings look."""
    what = f"{len(devices)} devices, each with its own user"
    if len(devices) < SERIES:
        what = f"{len(taken[0])} series of {len(devices)} busy device(s), taken in turn, as if each were a device"
    print(f"\n## Verdicts under saturation\n\n{what}; {len(taken)} rounds; all healthy, so any verdict is false.\n")
    min_slowdown = min_slowdown_on(devices[0])
    rows = []
    for probe in taken[0][0]:
        verdicts = verdicts_of(taken, probe, min_slowdown)
        restarts = sum(verdict.action == "restart" for verdict in verdicts)
        fastest = np.array([[min(series[probe]) for series in one] for one in taken])
        seen = float(np.mean(fastest > MUCH * np.median(readings[probe][IDLE])))
        rows.append(
            [probe, restarts, len(verdicts) - restarts, f"{100 * seen:.0f} %", f"{100 * variation(fastest):.1f} %"]
        )
    head = ["probe", "restart verdicts", "suspects", f"readings over {MUCH} x idle", "CV"]
    print("\n".join(table(head, rows)))
