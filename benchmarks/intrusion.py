"""What probes cost the program: loops of three kinds on one device, with and without probes, by turns.

On the first GPU of this machine, or without one on a virtual device. The probes run as a process beside the program, as
a job's do, or in the program's own gaps; beside them the probe that Dragon's documentation describes, written anew. So
that a small cost is seen above the machine's noise, laggard's rounds come more often than in a job (``--often``), and
the cost of one round is divided by the interval that the schedule of a job chooses.
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

from benchmarks.machine import description
from benchmarks.neighbour import ONE_THREAD, Neighbour
from benchmarks.probers import IN_TURN, INTERVAL, PROBERS, TINY, TINY_EVERY_S, Rounds
from benchmarks.tables import table
from benchmarks.users import USERS, Step
from collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, Device, gpu_names, local_devices
from collectors.probes import PROBE_NAMES

__all__ = ["Cost", "main"]

INTERVAL_S = 3.0  # a detector's, unless it is told otherwise
MAX_INTRUSION = 0.005
STEPS_TO_WARM_UP = 5


@dataclass
class Cost:
    """What one way to probe has cost one user.

    Attributes
    ----------
    interval_s
        From one round to the next, while it was measured.
    scheduled_s
        The same in a job.
    ratios
        Of each block with probes: seconds a step over those in the blocks before and after it, without.
    """

    interval_s: float
    scheduled_s: float
    ratios: list[float] = field(default_factory=list)

    @property
    def round_ms(self) -> float:
        """Milliseconds by which one round holds the user up."""
        return 1e3 * self.interval_s * _lost(statistics.fmean(self.ratios))

    @property
    def intrusion(self) -> float:
        """The share of the user's time that the probes take in a job."""
        return self.round_ms / 1e3 / self.scheduled_s

    @property
    def error(self) -> float:
        """Two standard errors of :attr:`intrusion`; NaN from a single block."""
        if len(self.ratios) < 2:
            return math.nan
        error = statistics.stdev(map(_lost, self.ratios)) / math.sqrt(len(self.ratios))
        return 2 * error * self.interval_s / self.scheduled_s


def _lost(ratio: float) -> float:
    """Return the share of the time that is lost where each step takes ``ratio`` times as long."""
    return 1 - 1 / ratio


@dataclass(frozen=True)
class Way:
    """One way to probe.

    Attributes
    ----------
    interval_s, scheduled_s
        From one round to the next, while it is measured and in a job.
    at_work
        Has the process beside the program probe, or the next gap be due, for the length of a block.
    gap
        What the program does after each step.
    """

    name: str
    interval_s: float
    scheduled_s: float
    at_work: Callable[[], AbstractContextManager[None]]
    gap: Callable[[], object]


def main(argv: list[str]) -> int:
    """Run the benchmark, print its table in Markdown; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks intrusion", description=__doc__)
    parser.add_argument("--cycles", type=int, default=4, help="of all ways, a block each (default: %(default)s)")
    parser.add_argument("--block", type=float, default=4.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument(
        "--often", type=float, default=10.0, help="rounds, as often as in a job (default: %(default)s times)"
    )
    options = parser.parse_args(argv)
    if options.cycles < 1 or min(options.block, options.often) <= 0:
        parser.error("--cycles is 1 or more, --block and --often are above 0")
    if not ONE_THREAD.items() <= os.environ.items():  # NumPy reads it when it is loaded
        os.execve(sys.executable, sys.orig_argv, os.environ | ONE_THREAD)  # noqa: S606 - this very command
    with tempfile.TemporaryDirectory() as folder, ExitStack() as neighbours:
        environ = {} if gpu_names() else {VIRTUAL_DEVICES: "1", VIRTUAL_DEVICE_DIR: folder}
        device = local_devices(os.environ | environ)[0]
        print(f"{description()}\n\nProbed: {device.model}.\n")
        ways = list(_ways(device, environ, INTERVAL_S / options.often, neighbours))
        rows = [row for user in USERS for row in _rows(user, device, ways, options.cycles, options.block)]
    head = ["user", "probes", "a round costs, ms", "every, s", "intrusion", "of it uncertain"]
    print("\n".join(table(head, rows)))
    return 0


def _ways(device: Device, environ: Mapping[str, str], interval_s: float, neighbours: ExitStack) -> Iterator[Way]:
    """Start the processes that probe, and yield each way."""
    for kind in PROBERS:
        side = neighbours.enter_context(Neighbour(kind, device.gpu, {**environ, INTERVAL: str(interval_s)}))
        if kind == TINY:
            yield Way(f"{kind} (Dragon's documented probe)", TINY_EVERY_S, TINY_EVERY_S, side.at_work, _no_gap)
            continue
        rounds = _measured(device, PROBE_NAMES if kind == IN_TURN else (), interval_s)
        scheduled_s = rounds.scheduled_s(INTERVAL_S)
        yield Way(f"{kind}, beside", interval_s, scheduled_s, side.at_work, _no_gap)
        yield Way(f"{kind}, in the gaps", interval_s, scheduled_s, rounds.watch.running, rounds.run_if_due)


def _measured(device: Device, in_turn: Sequence[str], interval_s: float) -> Rounds:
    """Return rounds whose cost is known: each probe has run while nothing else did."""
    rounds = Rounds(device, in_turn, interval_s, MAX_INTRUSION)
    for _ in range(max(3, 2 * len(in_turn))):
        rounds.run()
    return rounds


def _no_gap() -> None:
    pass


def _rows(user: str, device: Device, ways: Sequence[Way], cycles: int, block_s: float) -> Iterator[list[str]]:
    step = USERS[user](device)
    for _ in range(STEPS_TO_WARM_UP):
        step()
    costs = {way.name: Cost(way.interval_s, way.scheduled_s) for way in ways}
    before_s = _step_s(step, _no_gap, block_s)
    for _ in tqdm(range(cycles), desc=user, unit="cycle", disable=None):
        for way in ways:
            with way.at_work():
                with_s = _step_s(step, way.gap, block_s)
            after_s = _step_s(step, _no_gap, block_s)
            costs[way.name].ratios.append(with_s / ((before_s + after_s) / 2))
            before_s = after_s
    for name, cost in costs.items():
        error = "unknown" if math.isnan(cost.error) else f"± {cost.error:.2%}"
        figures = [f"{cost.round_ms:.1f}", f"{cost.scheduled_s:g}", f"{cost.intrusion:.2%}", error]
        yield [user, name, *figures]


def _step_s(step: Step, gap: Callable[[], object], block_s: float) -> float:
    """Return the seconds of a step, over a block of whole steps."""
    begun_s, steps = time.perf_counter(), 0
    while True:
        step()
        gap()
        steps += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= block_s:
            return elapsed_s / steps
