"""What probes cost a program whose ranks wait for each other after every step: simulated, and with real processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.tables import table
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, Device, GpuDevice, device_makers, gpu_names
from laggard.collectors.probe_schedule import JITTER, ProbeSchedule

__all__ = ["LockStep", "lost_share", "measured_table", "simulated_table"]

INTERVAL_S = 3.0
ROUND_S = 0.005 * INTERVAL_S  # what a round costs a device at most
STEPS_S = (0.02, 0.1, 1.0)
RANKS = (1, 8, 64, 512)
CLOCKS_DIFFER_S = 1e-3  # one standard deviation
# How the program is probed; "not" comes between the others.
NOT, INDEPENDENT, COMMON = "not", "independent moments", "common moments"
MODES = NOT, INDEPENDENT, COMMON
POLL_S = 0.05
START_DEADLINE_S = 120.0


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

    @contextmanager
    def running(self) -> Iterator[Callable[[str, float], float]]:
        """Run the program; yield a function that probes it in one way for a while and returns the seconds per step."""
        spawn = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            virtual = {VIRTUAL_DEVICES: str(self.ranks), VIRTUAL_DEVICE_DIR: folder}
            environ = {} if gpu_names() else virtual
            barrier, mode, steps, ended = (
                spawn.Barrier(self.ranks),
                spawn.Value("i", 0),
                spawn.Value("q", 0),
                spawn.Event(),
            )
            shared = self, environ, mode, ended
            workers = [spawn.Process(target=_rank, args=(*shared, rank, barrier, steps)) for rank in range(self.ranks)]
            for process in [*workers, spawn.Process(target=_probe_all, args=shared)]:
                process.start()
                stack.callback(process.join)
            stack.callback(ended.set)
            _wait_for(lambda: steps.value > 0, workers)

            def seconds_per_step(how: str, block_s: float) -> float:
                mode.value = MODES.index(how)
                before, begun_s = int(steps.value), time.perf_counter()
                ended.wait(block_s)
                return (time.perf_counter() - begun_s) / max(1, int(steps.value) - before)

            yield seconds_per_step


def measured_table(
    programs: Sequence[LockStep], block_s: float, cycles: int, progress: Callable[..., Any]
) -> list[str]:
    """Return the lines of a table: the share of time that each program loses."""
    rows = [row for program in programs for row in _rows(program, block_s, cycles, progress)]
    return table(["ranks", "step", "probes", "intrusion", "uncertainty"], rows)


def _rows(program: LockStep, block_s: float, cycles: int, progress: Callable[..., Any]) -> Iterator[list[str]]:
    lost: Mapping[str, list[float]] = {how: [] for how in MODES[1:]}
    with program.running() as seconds_per_step:
        before_s = seconds_per_step(NOT, block_s / 2)
        plain_s = [before_s]
        for _ in progress(range(cycles), desc=f"{program.ranks} ranks"):
            for how, ratios in lost.items():
                with_s = seconds_per_step(how, block_s)
                after_s = seconds_per_step(NOT, block_s / 2)
                ratios.append(1 - (before_s + after_s) / 2 / with_s)
                plain_s.append(after_s)
                before_s = after_s
    for how, ratios in lost.items():
        error = 2 * float(np.std(ratios, ddof=1)) / math.sqrt(cycles) if cycles > 1 else math.nan
        uncertainty = "unknown" if math.isnan(error) else f"± {error:.2%}"
        yield [str(program.ranks), f"{1e3 * np.median(plain_s):.1f} ms", how, f"{np.mean(ratios):.2%}", uncertainty]


def _wait_for(condition: Callable[[], bool], processes: Sequence[Any]) -> None:
    until_s = time.monotonic() + START_DEADLINE_S
    while not condition():
        if time.monotonic() > until_s or not all(process.is_alive() for process in processes):
            raise RuntimeError("the ranks did not start")
        time.sleep(POLL_S)


def _makers(environ: Mapping[str, str]) -> list[Callable[[], Device]]:
    return list(device_makers({**os.environ, **environ}).values())


def _rank(
    program: LockStep, environ: Mapping[str, str], mode: Any, ended: Any, rank: int, barrier: Any, steps: Any
) -> None:
    """Work as one rank until the program is over."""
    del mode
    device = _makers(environ)[rank]()
    step = _step(device, program.step_s)
    step()
    while not barrier.broken:
        try:
            if barrier.wait(START_DEADLINE_S) == 0:  # one of them, whichever
                steps.value += 1
                if ended.is_set():
                    barrier.abort()
        except threading.BrokenBarrierError:
            return
        step()


def _step(device: Device, step_s: float) -> Callable[[], object]:
    if isinstance(device, GpuDevice):
        from benchmarks.users import USERS

        return USERS["matrix products"](device)
    return lambda: device.run(lambda: time.sleep(step_s))


def _probe_all(program: LockStep, environ: Mapping[str, str], mode: Any, ended: Any) -> None:
    """Probe all devices as a job's collectors do: one process, one thread for each."""
    threads = [threading.Thread(target=_probe, args=(program, make(), mode, ended)) for make in _makers(environ)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _probe(program: LockStep, device: Device, mode: Any, ended: Any) -> None:
    run_round = _round(device, program)
    while not ended.wait(POLL_S):
        how = MODES[mode.value]
        schedule = ProbeSchedule(program.interval_s, time.time(), how if how == COMMON else f"{how} {device.gpu}")
        while MODES[mode.value] == how != NOT and not ended.is_set():
            schedule.advance(time.time())
            while MODES[mode.value] == how and (wait_s := schedule.wait_s(time.time())) > 0:
                time.sleep(min(wait_s, POLL_S))
            if MODES[mode.value] == how:
                run_round()


def _round(device: Device, program: LockStep) -> Callable[[], object]:
    if isinstance(device, GpuDevice):
        from benchmarks.probers import Rounds

        return Rounds(device, (), program.interval_s).run
    return lambda: device.run(lambda: time.sleep(program.round_s))
