"""What probes cost a program whose ranks wait for each other after every step: simulated, and with real processes."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, Device, GpuDevice, device_makers, gpu_names
from laggard.collectors.probe_schedule import JITTER, ProbeSchedule

__all__ = ["LockStep", "lost_in", "lost_share", "measured_table", "simulated_table"]

INTERVAL_S = 3.0
ROUND_S = 0.005 * INTERVAL_S  # what a round costs a device at most
STEPS_S = (0.02, 0.1, 1.0)
RANKS = (1, 8, 64, 512)
CLOCKS_DIFFER_S = 1e-3  # one standard deviation
# How the program is probed; not until all of it runs.
NOT, INDEPENDENT, COMMON = "not", "independent moments", "common moments"
MODES = NOT, INDEPENDENT, COMMON
POLL_S = 0.05
START_DEADLINE_S = 120.0
STEPS, PROBES = "steps.npy", "-probes.npy"


# ---------------------------------------------------------------------------------------------------------------------
# Simulated


def lost_share(
    ranks: int, step_s: float, *, common: bool, round_s: float = ROUND_S, intervals: int = 40, seed: int = 1
) -> float:
    """Return the share of a job's time that one probe round per rank and interval takes, by simulation.

    In each step each rank works for ``step_s``; a probe stops its device's work for ``round_s``; the step is over when
    the last rank is done. A probe of a rank that waits for the others costs nothing.
    """
    random = np.random.default_rng(seed)
    shape = intervals, ranks
    jitter = random.uniform(-JITTER, JITTER, (intervals, 1) if common else shape)
    begins_s = (0.5 + jitter) * INTERVAL_S + random.normal(0.0, CLOCKS_DIFFER_S, shape)
    left_s = np.full(shape, round_s)
    now_s, steps = np.zeros((intervals, 1)), np.zeros(intervals)
    while (running := now_s[:, 0] < INTERVAL_S).any():
        delay_s = np.where(begins_s < now_s + step_s, left_s, 0.0)
        ends_s = now_s + step_s + delay_s.max(axis=1, keepdims=True)
        beside_s = np.clip(ends_s - begins_s, 0.0, left_s)  # while the rank waits for the others
        left_s = np.where(delay_s > 0, 0.0, left_s - beside_s)
        steps += running
        now_s = np.where(running[:, None], ends_s, now_s)
    return float(1.0 - (steps * step_s).sum() / now_s.sum())


def simulated_table(round_s: float = ROUND_S) -> list[str]:
    """Return the lines of a table: the share of time lost, by step time and number of ranks."""
    rows = [
        [
            f"{1e3 * step_s:g} ms",
            ranks,
            *(f"{lost_share(ranks, step_s, common=how, round_s=round_s):.2%}" for how in (False, True)),
        ]
        for step_s in STEPS_S
        for ranks in RANKS
    ]
    return table(["step", "ranks", INDEPENDENT, COMMON], rows)


# ---------------------------------------------------------------------------------------------------------------------
# Measured


@dataclass(frozen=True)
class LockStep:
    """A program of several ranks, one on each device, that wait for each other after each step.

    Attributes
    ----------
    ranks
        Their number: that of the GPUs, or of virtual devices.
    step_s, round_s
        On virtual devices, how long a step and a probe round hold the device: they need no processor, so a few
        processors can do for many ranks. On GPUs both are real.
    interval_s
        Seconds between probe rounds.
    """

    ranks: int
    step_s: float = 0.02
    round_s: float = ROUND_S
    interval_s: float = INTERVAL_S

    def measure(self, blocks: Sequence[tuple[str, float]]) -> tuple[float, list[float]]:
        """Run the program, probed in these ways for so many seconds each.

        Returns
        -------
        step_s, lost
            The median seconds of a step without a probe, and the share of time lost in each block.
        """
        spawn = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            virtual = {VIRTUAL_DEVICES: str(self.ranks), VIRTUAL_DEVICE_DIR: folder}
            environ = {} if gpu_names() else virtual
            barrier, mode, ended = spawn.Barrier(self.ranks), spawn.Value("i", 0), spawn.Event()
            steps_file, shared = Path(folder, STEPS), (self, environ, mode, ended, Path(folder))
            processes = [spawn.Process(target=_rank, args=(*shared, rank, barrier)) for rank in range(self.ranks)]
            processes.append(spawn.Process(target=_probe_all, args=shared))
            for process in processes:
                process.start()
                stack.callback(process.join)
            stack.callback(ended.set)
            _wait_for(steps_file.exists, processes)
            spans = []
            for how, block_s in blocks:
                mode.value = MODES.index(how)
                begun_s = time.monotonic()
                ended.wait(block_s)
                spans.append((begun_s, time.monotonic()))
            stack.close()
            ends_s = np.load(steps_file)
            probes_s = np.concatenate([np.load(path) for path in Path(folder).glob(f"*{PROBES}")])
        return float(np.median(np.diff(ends_s))), [lost_in(ends_s, probes_s, *span) for span in spans]


def lost_in(ends_s: NDArray[np.floating], probes_s: NDArray[np.floating], begun_s: float, ended_s: float) -> float:
    """Return the share of a span of time that steps took longer for the probes in them.

    Steps without a probe are what the others are compared with, so whatever else delays steps on a busy machine counts
    for little.

    Parameters
    ----------
    ends_s
        When each step ended, ``(n_steps,)``.
    probes_s
        When each probe began and ended, ``(n_probes, 2)``.
    begun_s, ended_s
        The span.
    """
    within_s = ends_s[(ends_s >= begun_s) & (ends_s <= ended_s)]
    first_s, last_s = within_s[:-1], within_s[1:]
    probed = np.zeros(len(first_s), bool)
    for probe_begun_s, probe_ended_s in probes_s:
        probed |= (first_s < probe_ended_s) & (probe_begun_s < last_s)
    durations_s = last_s - first_s
    if not probed.any():
        return 0.0
    return float((durations_s[probed] - durations_s[~probed].mean()).sum() / durations_s.sum())


def measured_table(programs: Sequence[LockStep], block_s: float, cycles: int) -> list[str]:
    """Return the lines of a table: the share of time that each program loses."""
    rows = [row for program in programs for row in _rows(program, block_s, cycles)]
    return table(["ranks", "step", "probes", "intrusion", "uncertainty"], rows)


def _rows(program: LockStep, block_s: float, cycles: int) -> Iterator[list[str]]:
    ways = INDEPENDENT, COMMON
    step_s, lost = program.measure([(how, block_s) for _ in range(cycles) for how in ways])
    for place, how in enumerate(ways):
        shares = lost[place :: len(ways)]
        error = f"± {2 * float(np.std(shares, ddof=1)) / math.sqrt(cycles):.2%}" if cycles > 1 else "unknown"
        yield [str(program.ranks), f"{1e3 * step_s:.1f} ms", how, f"{np.mean(shares):.2%}", error]


def _wait_for(condition: Callable[[], bool], processes: Sequence[Any]) -> None:
    until_s = time.monotonic() + START_DEADLINE_S
    while not condition():
        if time.monotonic() > until_s or not all(process.is_alive() for process in processes):
            raise RuntimeError("the ranks did not start")
        time.sleep(POLL_S)


def _makers(environ: Mapping[str, str]) -> list[Callable[[], Device]]:
    return list(device_makers({**os.environ, **environ}).values())


def _rank(
    program: LockStep, environ: Mapping[str, str], mode: Any, ended: Any, folder: Path, rank: int, barrier: Any
) -> None:
    """Work as one rank until the program is over; the first one notes when each step ends."""
    del mode
    step = _step(_makers(environ)[rank](), program.step_s)
    ends_s: list[float] = []
    with contextlib.suppress(threading.BrokenBarrierError):
        while True:
            step()
            barrier.wait(START_DEADLINE_S)
            if rank == 0:
                ends_s.append(time.monotonic())
                if len(ends_s) == 1:
                    np.save(folder / STEPS, ends_s)
                if ended.is_set():
                    np.save(folder / STEPS, ends_s)
                    barrier.abort()


def _step(device: Device, step_s: float) -> Callable[[], object]:
    if isinstance(device, GpuDevice):
        from benchmarks.users import USERS

        return USERS["matrix products"](device)
    return lambda: device.run(lambda: time.sleep(step_s))


def _probe_all(program: LockStep, environ: Mapping[str, str], mode: Any, ended: Any, folder: Path) -> None:
    """Probe all devices as a job's collectors do: one process, one thread for each."""
    with ThreadPoolExecutor(program.ranks) as pool:
        for make in _makers(environ):
            pool.submit(_probe, program, make(), mode, ended, folder)


def _probe(program: LockStep, device: Device, mode: Any, ended: Any, folder: Path) -> None:
    run_round = _round(device, program)
    probes_s: list[tuple[float, float]] = []
    while not ended.wait(POLL_S):
        how = MODES[mode.value]
        schedule = ProbeSchedule(program.interval_s, time.time(), how if how == COMMON else f"{how} {device.gpu}")
        while MODES[mode.value] == how != NOT and not ended.is_set():
            schedule.advance(time.time())
            while MODES[mode.value] == how and not ended.is_set() and (wait_s := schedule.wait_s(time.time())) > 0:
                time.sleep(min(wait_s, POLL_S))
            if MODES[mode.value] == how and not ended.is_set():
                begun_s = time.monotonic()
                run_round()
                probes_s.append((begun_s, time.monotonic()))
    np.save(folder / f"{device.gpu}{PROBES}", np.array(probes_s).reshape(-1, 2))


def _round(device: Device, program: LockStep) -> Callable[[], object]:
    if isinstance(device, GpuDevice):
        from benchmarks.probers import Rounds

        return Rounds(device, program.interval_s).run
    return lambda: device.run(lambda: time.sleep(program.round_s))
