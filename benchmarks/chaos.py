"""Chaos: a job that counts in State while its processes are killed at random moments, several at once, in restarts too.

Each storm is a seeded plan of faults (``tests/chaos/plan.py``) on a job on four virtual nodes; at its end every
committed increment must be there exactly once, and no process may be left.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from tests.chaos.plan import VICTIMS, plan_of
from tests.chaos.storm import storm

FAULTS_IN_A_STORM = 50


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=2000, help="kills in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first storm (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no storm after that (default: no limit)")
    options = parser.parse_args(arguments)
    console = Console()
    console.print(description())
    killed: Counter[str] = Counter()
    endings: Counter[int] = Counter()
    launches = increments = failures = 0
    seed = options.seed
    began_s = time.monotonic()
    while killed.total() < options.faults and time.monotonic() < began_s + 60 * options.minutes:
        try:
            outcome = storm(plan_of(seed, min(FAULTS_IN_A_STORM, options.faults - killed.total())), seed)
        except AssertionError as wrong:
            console.print(f"seed {seed}: {wrong}", style="bold red", markup=False)
            failures += 1
            seed += 1
            continue
        killed += outcome.killed
        endings += outcome.endings
        launches += outcome.launches
        increments += outcome.increments
        console.print(
            f"seed {seed}: {outcome.killed.total()} killed, {outcome.increments} increments, none lost or twice"
        )
        seed += 1
    table = Table(title=f"{killed.total()} kills in {time.monotonic() - began_s:.0f} s", title_justify="left")
    table.add_column("killed")
    table.add_column("times", justify="right")
    for victim in VICTIMS:
        table.add_row(victim, str(killed[victim]))
    console.print(table)
    ends = ", ".join(f"{count} x {code}" for code, count in sorted(endings.items()))
    console.print(f"{launches} launches, {increments} increments, commands ended with: {ends}")
    console.print(f"{failures} storms that were not survived as they should be")
    return 1 if failures else 0
