"""Simulation: the real controller and agents on simulated machines, through schedules of faults, a million events long.

Clock, threads, processes, pipes, network and state server are simulated (``tests/simulation``); each seed is one job
with its faults, and always gives the same course of events. After each job everything that must always hold is checked.
``--replay SEED`` shows what happens in one of them.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from tests.simulation.faults import FAULTS
from tests.simulation.job import simulated_world
from tests.simulation.schedules import Outcome, Schedule, replay_command, run


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulation", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="total number of events (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show what happens in one schedule")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    with simulated_world() as directory:
        if options.replay is not None:
            return _show(console, options.replay, run(options.replay, directory))
        console.print(description())
        outcomes: list[Outcome] = []
        n_events, seed, began_s = 0, options.seed, time.monotonic()
        while n_events < options.events:
            outcome = run(seed, directory)
            n_events += outcome.events
            if outcome.failure is not None:
                console.print(f"seed {seed}: {outcome.failure}; {replay_command(seed)}", style="bold red", markup=False)
            outcomes.append(outcome)
            seed += 1
        seconds = time.monotonic() - began_s
    console.print(_table(outcomes))
    failures = sum(outcome.failure is not None for outcome in outcomes)
    simulated_h = sum(outcome.simulated_s for outcome in outcomes) / 3600
    endings = Counter(outcome.exit_code for outcome in outcomes)
    exit_codes = ", ".join(f"{count} x {code}" for code, count in sorted(endings.items(), key=str))
    console.print(
        f"{len(outcomes)} schedules, {n_events} events, {simulated_h:.1f} h simulated in {seconds:.0f} s; "
        f"exit codes: {exit_codes}"
    )
    console.print(f"{failures} schedules failed")
    return 1 if failures else 0


def _show(console: Console, seed: int, outcome: Outcome) -> int:
    schedule = Schedule.of(seed)
    console.print(schedule.plan, markup=False)
    for fault in schedule.faults:
        console.print(f"fault: {fault}", markup=False)
    for line in outcome.trace:
        console.print(line, markup=False, soft_wrap=True)
    return 0 if outcome.failure is None else 1


def _table(outcomes: list[Outcome]) -> Table:
    struck = Counter(fault for outcome in outcomes for fault in outcome.faults)
    table = Table(title=f"{struck.total()} faults", title_justify="left")
    table.add_column("fault")
    table.add_column("times", justify="right")
    for fault in sorted(FAULTS):
        table.add_row(fault, str(struck[fault]))
    return table
