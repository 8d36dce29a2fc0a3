"""The parts of the first day on a GPU: each prints its tables, within about the seconds that it gets."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks import fresh_rank as fresh
from benchmarks.intrusion import HEAD, INTERVAL_S, methods_on, rows_of
from benchmarks.lockstep import LockStep, measured_table, simulated_table
from benchmarks.neighbour import Neighbour
from benchmarks.peaks import floor_s, peaks_of
from benchmarks.probes import (
    REPEATS,
    interleaved,
    min_slowdown_on,
    report,
    report_verdicts,
    report_waits,
    saturated,
    seconds_of,
    variation,
)
from benchmarks.tables import table
from benchmarks.users import USERS
from laggard.collectors.device import Device, GpuDevice
from laggard.collectors.metrics.gpu import device_readers
from laggard.collectors.probes import GEMM_PROBE, Probe, probes_of
from laggard.collectors.probing import Probing, symptom_reader
from laggard.collectors.supervised_check import check_devices_here
from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.judging.diagnosis import diagnose
from laggard.detectors.verdict import Verdict

__all__ = ["Bench"]

REPEATS_ALONE = 50
SHARE_OF_PEAK = 0.3, 1.1
CLOCKS_DIFFER, CLOCK_READINGS = 0.02, 20
MIB = 1 << 20
ROUNDS_BEFORE, ROUNDS_AFTER = 12, 60
SERIES, MIN_PEERS = 4, 3
WARM_UP_S = 0.5
READERS_S = 20.0
PAYS_S = 2.0  # a fresh rank that pays less is not worth a process that stands by
# Not needed here; a job needs some of them.
PACKAGES = (
    "cupy",
    "numpy",
    "psutil",
    "pynvml",
    "tqdm",
    "redis",
    "click",
    "rich",
    "ray",
    "matplotlib",
    "torch",
)


@dataclass
class Bench:
    """What the parts share.

    Attributes
    ----------
    devices
        The machine's GPUs, or virtual devices.
    environ
        The variables by which other processes find them.
    checks
        What was expected, whether it holds, and what was found.
    readings
        All readings, by part.
    """

    devices: Sequence[Device]
    environ: Mapping[str, str]
    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    readings: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The first device."""
        return self.devices[0]

    @cached_property
    def probes(self) -> list[Probe]:
        """The probes of the first device."""
        return probes_of(self.device)

    def check(self, name: str, ok: bool, found: str) -> None:
        """Note an expectation."""
        self.checks.append((name, bool(ok), found))


def until(seconds: float, most: int) -> Iterator[int]:
    """Count from 0 until there are enough or the time is over, at least once."""
    end_s = time.monotonic() + seconds
    return itertools.takewhile(lambda number: number == 0 or time.monotonic() < end_s, range(most))


# ---------------------------------------------------------------------------------------------------------------------


def fresh_rank(bench: Bench, seconds: float) -> None:
    """Print what a fresh rank pays before its first step, and what a process group costs that gets other peers."""
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is missing, so nothing is measured.")
        return
    device = f"cuda:{bench.device.ordinal}" if isinstance(bench.device, GpuDevice) else "cpu"
    with tempfile.TemporaryDirectory() as cache:
        measured = fresh.Measured(device, cache, seconds)
        first = measured("start")
        others = {
            what: value for task in ("group", "copies", "fault", "killed") for what, value in measured(task).items()
        }
        again = measured("start")  # with what the first one has compiled
    rows: list[list[object]] = [[what, _figure(value), _figure(again.get(what, "-"))] for what, value in first.items()]
    rows += [[what, _figure(value), "-"] for what, value in others.items()]
    print("\n".join(table([f"one rank on {device}", "s", "s, in a second process"], rows)))
    bench.readings["fresh rank"] = {"first": first, "again": again}
    pays_s = fresh.pays_s(again)
    if pays_s is None:
        print("\nWhat a fresh rank pays is not known.")
        return
    worth = "so it is worth that others keep their processes, and that one stands by"
    print(f"\nA fresh rank pays {pays_s:.1f} s, {worth if pays_s >= PAYS_S else 'so a relaunch costs hardly more'}.")
    bench.check(f"a fresh rank pays {PAYS_S:.0f} s or more", pays_s >= PAYS_S, f"{pays_s:.1f} s")


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2g}"


def environment(bench: Bench, seconds: float) -> None:
    """Print what the machine has, and in one line each what it lacks."""
    del seconds
    found = [(name, _found(partial(_package, name))) for name in PACKAGES]
    if isinstance(bench.device, GpuDevice):
        found += [(name, _found(ask)) for name, ask in _gpu_parts(bench.device).items()]
    found += [(name, os.environ.get(name, "not set")) for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")]
    print("\n".join(table(["part", "found"], found)))


def _found(ask: Callable[[], object]) -> str:
    try:
        return str(ask())
    except Exception as error:  # noqa: BLE001 - whatever a part of the machine raises, that is what is found
        return f"MISSING: {' '.join(f'{type(error).__name__}: {error}'.split())[:160]}"


def _package(name: str) -> str:
    module = importlib.import_module(name)
    return str(getattr(module, "__version__", "") or version({"pynvml": "nvidia-ml-py"}.get(name, name)))


def _gpu_parts(device: GpuDevice) -> dict[str, Callable[[], object]]:
    import cupy
    import pynvml as nvml

    from laggard.collectors.probes.cuda_kernels import KERNELS
    from laggard.collectors.symptoms import SymptomReader

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(device.ordinal)

    return {
        "devices": runtime.getDeviceCount,
        "model, UUID": lambda: f"{device.model}, {device.uuid}",
        "compute capability": lambda: f"{properties['major']}.{properties['minor']}",
        "L2, MiB": lambda: properties["l2CacheSize"] / MIB,
        "memory free, MiB": lambda: device.run(runtime.memGetInfo)[0] // MIB,
        "CUDA runtime, driver": lambda: f"{runtime.runtimeGetVersion()}, {runtime.driverGetVersion()}",
        "compiler": lambda: device.run(lambda: cupy.RawModule(code=KERNELS).get_function("nothing")),
        "cuBLAS": lambda: device.run(cupy.cuda.device.get_cublas_handle) != 0,
        "NVML": lambda: (nvml.nvmlInit(), nvml.nvmlSystemGetDriverVersion())[1],
        "NVML of this device": lambda: sorted(SymptomReader(device.bus_address).status(bus_in_use=True).values.items()),
    }


def probes_alone(bench: Bench, seconds: float) -> None:
    """Print each probe's repeatability, share of the peak, wrong results, and the memory that all of them take."""
    free_bytes = _free_bytes(bench.device)
    probes = bench.probes
    taken_bytes = None if free_bytes is None else free_bytes - (_free_bytes(bench.device) or 0)
    rows, peaks = [], peaks_of(bench.device.model)
    if isinstance(bench.device, GpuDevice):
        _raise_clock(max(probes, key=lambda probe: probe.operations))
    for probe in probes:
        probe.prepare()
        readings, overheads_s = [], []
        for _ in until(seconds / len(probes), REPEATS_ALONE):
            readings.append(probe.seconds())
            overheads_s.append(probe.timing.wall_s - probe.timing.device_s)
        wrong = probe.wrong_results()
        bench.readings.setdefault("alone", {})[probe.name] = readings
        middle_s = float(np.median(readings))
        least_s = floor_s(probe, peaks)
        share = "-" if least_s is None else f"{least_s / middle_s:.2f}"
        overhead_us = f"{1e6 * float(np.median(overheads_s)):.0f}"
        spread = f"{variation(readings):.1%}"
        rows.append(
            [probe.name, len(readings), f"{probe.figure(middle_s):.4g}", probe.unit, spread, share, overhead_us, wrong]
        )
        bench.check(f"{probe.name} computes correctly", wrong == 0, f"{wrong} wrong results")
        if least_s is not None:
            low, high = SHARE_OF_PEAK
            bench.check(f"{probe.name} within {low} and {high} of the peak", low <= least_s / middle_s <= high, share)
    print("\n".join(table(["probe", "repeats", "median", "unit", "CV", "of peak", "host adds, us", "wrong"], rows)))
    if taken_bytes is not None:
        print(f"\nAll probes together take {taken_bytes / MIB:.0f} MiB of the device's memory.")
    _compare_clocks(bench)


def _raise_clock(probe: Probe) -> None:
    """Run a probe for a while: the clock of an idle GPU is low."""
    probe.prepare()
    for _ in until(WARM_UP_S, 10_000):
        probe.seconds()


def _free_bytes(device: Device) -> int | None:
    if not isinstance(device, GpuDevice):
        return None
    import cupy

    return int(device.run(cupy.cuda.runtime.memGetInfo)[0])


def _compare_clocks(bench: Bench) -> None:
    """Print the frequency that the clock probe reads and the one that NVML reports meanwhile."""
    reader = symptom_reader(bench.device)
    probe = next((probe for probe in bench.probes if probe.name == "clock"), None)
    if reader is None or probe is None:
        return
    read_mhz, reported_mhz = [], []
    for _ in range(CLOCK_READINGS):
        read_mhz.append(1e3 * probe.figure(probe.seconds()))
        reported_mhz.append(reader.status().values.get("sm_clock_mhz", float("nan")))
    read, reported = float(np.median(read_mhz)), float(np.median(reported_mhz))
    print(f"\nThe clock probe reads {read:.0f} MHz, NVML reports {reported:.0f} MHz.")
    bench.check(
        "the clock probe agrees with NVML within 2 %",
        abs(read / reported - 1) <= CLOCKS_DIFFER,
        f"{read / reported:.3f}",
    )


def doctor(bench: Bench, seconds: float) -> None:
    """Print what `laggard doctor` finds: its check, in a process of its own, and its diagnosis."""
    begun_s = time.monotonic()
    checks = {
        ("here", check.gpu): check for check in check_devices_here({**os.environ, **bench.environ}, max(30.0, seconds))
    }
    diagnoses = diagnose(checks, {})
    rows = [
        [gpu, diagnosis.condition, "; ".join(diagnosis.reasons) or "-", str(checks["here", gpu].cause)]
        for (_, gpu), diagnosis in diagnoses.items()
    ]
    print("\n".join(table(["device", "condition", "reasons", "cause"], rows)))
    print(f"\nIn {time.monotonic() - begun_s:.0f} s.")
    healthy = all(diagnosis.condition == "ok" for diagnosis in diagnoses.values())
    bench.check("the doctor finds every device to be in order", healthy, ", ".join(row[1] for row in rows))


def chain(bench: Bench, seconds: float) -> None:
    """Print after how many rounds a device with a busy neighbour gets a verdict.

    With fewer than three devices, the others are readings of the first one without a neighbour.
    """
    probings = [Probing(device, max_intrusion=1.0) for device in bench.devices[:SERIES]]
    if len(probings) < MIN_PEERS:
        probings = probings[:1]
        print(f"One device, and {SERIES - 1} series of its readings without the neighbour.\n")
    else:
        print(f"{len(probings)} devices.\n")
    before = [_readings(probings) for _ in range(ROUNDS_BEFORE)]
    analysis = SlowGPUAnalysis(min_slowdown=min_slowdown_on(bench.device))
    for readings in before:
        analysis.update(_named(readings))
    verdicts: list[Verdict] = []
    rounds = 0
    with Neighbour("compute", bench.device.gpu, bench.environ) as neighbour, neighbour.at_work():
        for number in until(seconds, ROUNDS_AFTER):
            rounds = number + 1
            first = [_round(probings[0])]
            others = _readings(probings[1:]) if probings[1:] else before[number % len(before)]
            verdicts = analysis.update(_named([*first, *others[-len(before[0]) + 1 :]]))
            if verdicts:
                break
    found = "; ".join(str(verdict.evidence) for verdict in verdicts) or "no verdict"
    print(f"After {rounds} rounds with a neighbour that computes on the first: {found}.")
    bench.check("a busy neighbour leads to a verdict", {verdict.host for verdict in verdicts} == {"node0"}, found)


def _readings(probings: Sequence[Probing]) -> list[list[float]]:
    """Return a round's readings; of one device, several series."""
    series = SERIES if len(probings) == 1 else 1
    return [_round(probing) for probing in probings for _ in range(series)]


def _round(probing: Probing) -> list[float]:
    return [probing.seconds() for _ in range(REPEATS)]


def _named(readings: Sequence[list[float]]) -> dict[tuple[str, str], list[float]]:
    return {(f"node{number}", "0"): repeats for number, repeats in enumerate(readings)}


def neighbours(bench: Bench, seconds: float) -> None:
    """Print what neighbours do to each probe, and by which clock."""
    taken = interleaved(bench.device, bench.probes, bench.environ, until(seconds, REPEATS_ALONE))
    bench.readings["neighbours"] = seconds_of(taken)
    report(bench.device, bench.probes, bench.readings["neighbours"])
    report_waits(bench.device, taken)
    if isinstance(bench.device, GpuDevice):
        found = bench.readings["neighbours"][GEMM_PROBE]
        slowdown = float(np.median(found["compute"]) / np.median(found["idle"]))
        bench.check("the product notices a neighbour that computes", slowdown > 1.05, f"{slowdown:.2f} times as long")


def one_program(bench: Bench, seconds: float) -> None:
    """Print what probes cost a program on one device."""
    end_s, cycles, rows = time.monotonic() + seconds, 2, []
    with ExitStack() as stack:
        methods = list(methods_on(bench.device, bench.environ, INTERVAL_S / 10, stack))
        blocks = len(USERS) * (1 + 2 * len(methods) * cycles)
        block_s = min(4.0, max(0.05, (end_s - time.monotonic()) / blocks))
        for user in USERS:
            rows += list(rows_of(user, bench.device, methods, cycles, block_s))
    print(f"{cycles} cycles of blocks of {block_s:.1f} s.\n")
    print("\n".join(table(HEAD, rows)))


def lock_step(bench: Bench, seconds: float) -> None:
    """Print what probes cost a program whose ranks wait for each other: with real ranks if there are two devices."""
    product = next(probe for probe in bench.probes if probe.name == GEMM_PROBE)
    round_s = REPEATS * min(product.seconds() for _ in range(REPEATS))
    print(f"Simulated, with rounds of {1e3 * round_s:.1f} ms:\n")
    print("\n".join(simulated_table(round_s)))
    if len(bench.devices) < 2:
        print("\nThere is one device, so nothing is measured.")
        return
    block_s = max(0.5, (seconds - 10) / 2)
    is_gpu = isinstance(bench.device, GpuDevice)
    program = LockStep(len(bench.devices) if is_gpu else 2, interval_s=min(INTERVAL_S, block_s / 2))
    print("\nMeasured:\n")
    print("\n".join(measured_table([program], block_s, 1)))


def readers(bench: Bench, seconds: float) -> None:
    """Print the device metrics that the telemetry reads, once a second."""
    news: list[tuple[str, int]] = []
    found = device_readers(None, lambda gpu, number: news.append((gpu, number)), {**os.environ, **bench.environ})
    values: dict[str, list[float]] = {}
    durations_s = []
    for _ in until(min(READERS_S, seconds), int(READERS_S)):
        begun_s = time.monotonic()
        for reading in found[0].read() if found else ():
            values.setdefault(reading.metric, []).append(reading.value)
        durations_s.append(time.monotonic() - begun_s)
        time.sleep(min(1.0, seconds / READERS_S))
    rows = [[metric, len(read), f"{min(read):g}", f"{max(read):g}"] for metric, read in values.items()]
    print("\n".join(table(["metric", "readings", "least", "most"], rows)))
    print(f"\nReading all takes {1e3 * float(np.median(durations_s)):.1f} ms (median); XID errors: {news or 'none'}.")
    bench.check("the device has metrics", bool(values), f"{len(values)} metrics")


def saturated_devices(bench: Bench, seconds: float) -> None:
    """Print whether devices that are all busy get a false verdict."""
    probes = [bench.probes, *(probes_of(device) for device in bench.devices[1:])]
    taken = saturated(bench.devices, probes, bench.environ, until(seconds, 200))
    report_verdicts(bench.devices, taken, bench.readings.get("neighbours") or _idle(bench))


def _idle(bench: Bench) -> dict[str, dict[str, list[float]]]:
    return {name: {"idle": readings} for name, readings in bench.readings["alone"].items()}
