"""Chaos: a job that counts in State while its processes are killed at random moments, several at once, in restarts too.

Each storm is a seeded plan of faults (``tests/chaos/plan.py``) on a job on four virtual nodes; at its end every
committed increment must be there exactly once, and no process may be left. Every fifth storm is on a program with Ray's
actors, which take several times as long to come back; the others are on copies of a program, one on each node.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from tests.chaos.plan import WITH_RAY, WITHOUT_RAY
from tests.chaos.storm import storm

FAULTS_IN_A_STORM = 50
# Storms with Ray among all.
ONE_IN = 5


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=2000, help="kills in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first storm (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no storm after that (default: no limit)")
    options = parser.parse_args(arguments)
    console = Console()
    console.print(description())
    killed: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    endings: Counter[int] = Counter()
    launches = increments = failures = 0
    seed = options.seed
    began_s = time.monotonic()
    while (left := options.faults - _total(killed)) > 0 and time.monotonic() < began_s + 60 * options.minutes:
        ray = seed % ONE_IN == 0
        try:
            outcome = storm(seed, min(FAULTS_IN_A_STORM, left), ray=ray)
        except AssertionError as wrong:
            console.print(f"seed {seed}: {wrong}", style="bold red", markup=False)
            failures += 1
            seed += 1
            continue
        killed[ray] += outcome.killed
        endings += outcome.endings
        launches += outcome.launches
        increments += outcome.increments
        who = "with Ray" if ray else "copies"
        console.print(
            f"seed {seed}, {who}: {outcome.killed.total()} killed, {outcome.increments} increments, none lost or twice"
        )
        seed += 1
    table = Table(title=f"{_total(killed)} kills in {time.monotonic() - began_s:.0f} s", title_justify="left")
    table.add_column("killed")
    table.add_column("with Ray", justify="right")
    table.add_column("copies", justify="right")
    for victim in WITH_RAY:
        table.add_row(victim, str(killed[True][victim]), str(killed[False][victim]) if victim in WITHOUT_RAY else "")
    console.print(table)
    ends = ", ".join(f"{count} x {code}" for code, count in sorted(endings.items()))
    console.print(f"{launches} launches, {increments} increments, commands ended with: {ends}")
    console.print(f"{failures} storms that were not survived as they should be")
    return 1 if failures else 0


def _total(killed: dict[bool, Counter[str]]) -> int:
    return sum(each.total() for each in killed.values())
