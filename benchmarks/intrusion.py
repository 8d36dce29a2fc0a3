"""What probes cost a program: three kinds of loops on one device, alternately with and without probes.

Runs on the machine's first GPU, or on a virtual device if there is none. The probes run in a separate process, as in a
job, or inline in the program itself; for comparison, a reimplementation of the probe in Dragon's documentation runs in
a separate process. To make a small cost visible above the machine's noise, laggard's rounds come more often than in
a job (``--often``), and the cost of one round is divided by the interval that a job's schedule would choose.

With ``--lock-step``: a program whose ranks wait for each other after each step, probed at moments of each rank's own or
at common ones, at the rate of a job; simulated for many ranks, and measured for a few.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from benchmarks.lockstep import LockStep, measured_table, simulated_table
from benchmarks.machine import description
from benchmarks.neighbour import ONE_THREAD, Neighbour
from benchmarks.probers import INTERVAL, PROBERS, TINY, TINY_EVERY_S, Rounds
from benchmarks.tables import table
from benchmarks.users import USERS, Step
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, Device, gpu_names, local_devices

__all__ = ["HEAD", "Cost", "main", "methods_on", "rows_of"]

INTERVAL_S = 3.0  # the default of a detector
MAX_INTRUSION = 0.005
STEPS_TO_WARM_UP = 5
HEAD = "user", "probes", "cost of a round, ms", "interval, s", "intrusion", "uncertainty"


@dataclass
class Cost:
    """What one probing method has cost one user.

    Attributes
    ----------
    interval_s
        Time between rounds during the measurement.
    scheduled_s
        Time between rounds in a job.
    ratios
        For each block with probes: seconds per step, relative to the blocks without probes before and after it.
    """

    interval_s: float
    scheduled_s: float
    ratios: list[float] = field(default_factory=list)

    @property
    def round_ms(self) -> float:
        """Milliseconds by which one round delays the user."""
        return 1e3 * self.interval_s * _lost(statistics.fmean(self.ratios))

    @property
    def intrusion(self) -> float:
        """Share of the user's time that the probes take in a job."""
        return self.round_ms / 1e3 / self.scheduled_s

    @property
    def error(self) -> float:
        """Two standard errors of :attr:`intrusion`; NaN if there is a single block."""
        if len(self.ratios) < 2:
            return math.nan
        error = statistics.stdev(map(_lost, self.ratios)) / math.sqrt(len(self.ratios))
        return 2 * error * self.interval_s / self.scheduled_s


def _lost(ratio: float) -> float:
    """Return the share of time lost if each step takes ``ratio`` times as long."""
    return 1 - 1 / ratio


@dataclass(frozen=True)
class Method:
    """One method of probing.

    Attributes
    ----------
    interval_s, scheduled_s
        Time between rounds, during the measurement and in a job.
    at_work
        Context manager that enables probing, in the separate process or inline.
    after_step
        What the program calls after each step.
    """

    name: str
    interval_s: float
    scheduled_s: float
    at_work: Callable[[], AbstractContextManager[None]]
    after_step: Callable[[], object]


def main(argv: list[str]) -> int:
    """Run the benchmark and print its table as Markdown; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks intrusion", description=__doc__)
    parser.add_argument("--cycles", type=int, default=4, help="cycles of one block per method (default: %(default)s)")
    parser.add_argument(
        "--block", type=float, default=4.0, metavar="SECONDS", help="length of a block (default: %(default)s)"
    )
    parser.add_argument(
        "--often", type=float, default=10.0, help="how many times as many rounds as in a job (default: %(default)s)"
    )
    parser.add_argument(
        "--lock-step", action="store_true", help="only a program whose ranks wait for each other after each step"
    )
    parser.add_argument(
        "--ranks",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[2, 8],
        metavar="N,N",
        help="numbers of ranks in lock step, on virtual devices (default: 2,8)",
    )
    options = parser.parse_args(argv)
    if min(options.cycles, *options.ranks) < 1 or min(options.block, options.often) <= 0:
        parser.error("--cycles and --ranks must be at least 1, --block and --often greater than 0")
    if options.lock_step:
        return _lock_step(options)
    if not ONE_THREAD.items() <= os.environ.items():  # NumPy reads them when it is loaded
        os.execve(sys.executable, sys.orig_argv, os.environ | ONE_THREAD)  # noqa: S606 - this very command
    with tempfile.TemporaryDirectory() as folder, ExitStack() as neighbours:
        environ = {} if gpu_names() else {VIRTUAL_DEVICES: "1", VIRTUAL_DEVICE_DIR: folder}
        device = local_devices(os.environ | environ)[0]
        print(f"{description()}\n\nProbed: {device.model}.\n")
        methods = list(methods_on(device, environ, INTERVAL_S / options.often, neighbours))
        rows = [row for user in USERS for row in rows_of(user, device, methods, options.cycles, options.block)]
    print("\n".join(table(HEAD, rows)))
    return 0


def _lock_step(options: argparse.Namespace) -> int:
    gpus = len(gpu_names())
    programs = [LockStep(gpus)] if gpus else [LockStep(ranks) for ranks in options.ranks]
    print(f"{description()}\n\n## Simulated\n")
    print("\n".join(simulated_table()))
    print(f"\n## Measured\n\nOn {'GPUs' if gpus else 'virtual devices'}.\n", flush=True)
    print("\n".join(measured_table(programs, options.block * INTERVAL_S, options.cycles)))
    return 0


def methods_on(
    device: Device, environ: Mapping[str, str], interval_s: float, neighbours: ExitStack
) -> Iterator[Method]:
    """Start the processes that probe, and yield each method."""
    for kind in PROBERS:
        side = neighbours.enter_context(Neighbour(kind, device.gpu, {**environ, INTERVAL: str(interval_s)}))
        if kind == TINY:
            yield Method(f"{kind} (Dragon's documented probe)", TINY_EVERY_S, TINY_EVERY_S, side.at_work, _nothing)
            continue
        rounds = _measured(device, interval_s)
        scheduled_s = rounds.scheduled_s(INTERVAL_S)
        yield Method(f"{kind}, separate process", interval_s, scheduled_s, side.at_work, _nothing)
        yield Method(f"{kind}, inline", interval_s, scheduled_s, rounds.watch.running, rounds.run_if_due)


def _measured(device: Device, interval_s: float) -> Rounds:
    """Return rounds whose cost is known: the probe has run on an idle device."""
    rounds = Rounds(device, interval_s, MAX_INTRUSION)
    for _ in range(3):
        rounds.run()
    return rounds


def _nothing() -> None:
    pass


def rows_of(user: str, device: Device, methods: Sequence[Method], cycles: int, block_s: float) -> Iterator[list[str]]:
    """Yield a row of the table for each method of probing one user."""
    step = USERS[user](device)
    for _ in range(STEPS_TO_WARM_UP):
        step()
    costs = {method.name: Cost(method.interval_s, method.scheduled_s) for method in methods}
    before_s = _step_s(step, _nothing, block_s)
    for _ in tqdm(range(cycles), desc=user, unit="cycle", disable=None):
        for method in methods:
            with method.at_work():
                with_s = _step_s(step, method.after_step, block_s)
            after_s = _step_s(step, _nothing, block_s)
            costs[method.name].ratios.append(with_s / ((before_s + after_s) / 2))
            before_s = after_s
    for name, cost in costs.items():
        error = "unknown" if math.isnan(cost.error) else f"± {cost.error:.2%}"
        figures = [f"{cost.round_ms:.1f}", f"{cost.scheduled_s:g}", f"{cost.intrusion:.2%}", error]
        yield [user, name, *figures]


def _step_s(step: Step, after_step: Callable[[], object], block_s: float) -> float:
    """Return the mean seconds per step over one block."""
    begun_s, steps = time.perf_counter(), 0
    while True:
        step()
        after_step()
        steps += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= block_s:
            return elapsed_s / steps
