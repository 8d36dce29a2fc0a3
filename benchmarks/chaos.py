"""Chaos: hit processes of a job at random moments, several at a time and during restarts, while it counts in State.

They are killed, stopped for a while, exit with an error code, or raise an exception.

Each storm is a seeded plan of faults (``tests/long/plan.py``) for a job on four virtual nodes. Afterwards every
committed increment must be stored exactly once, and no process may be left over. Every fifth storm hits a program with
Ray actors, which take several times as long to restart; the others hit the ranks of a program, one per node.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from tests.long.plan import WITH_RAY, WITHOUT_RAY
from tests.long.storm import storm

FAULTS_IN_A_STORM = 50
ONE_IN = 5  # storms hits a program with Ray actors


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=2000, help="total number of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first storm (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no storm after this time (default: no limit)"
    )
    options = parser.parse_args(arguments)
    console = Console()
    console.print(description())
    blows: Counter[str] = Counter()
    hit: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    endings: Counter[int] = Counter()
    launches = increments = failures = 0
    seed = options.seed
    began_s = time.monotonic()
    while (left := options.faults - _total(hit)) > 0 and time.monotonic() < began_s + 60 * options.minutes:
        ray = seed % ONE_IN == 0
        try:
            outcome = storm(seed, min(FAULTS_IN_A_STORM, left), ray=ray)
        except AssertionError as error:
            console.print(f"seed {seed}: {error}", style="bold red", markup=False)
            failures += 1
            seed += 1
            continue
        hit[ray] += outcome.hit
        blows += outcome.blows
        endings += outcome.endings
        launches += outcome.launches
        increments += outcome.increments
        kind = "with Ray" if ray else "ranks"
        n_faults = outcome.hit.total()
        console.print(f"seed {seed}, {kind}: {n_faults} faults, {outcome.increments} increments, none lost or repeated")
        seed += 1
    table = Table(title=f"{_total(hit)} faults in {time.monotonic() - began_s:.0f} s", title_justify="left")
    table.add_column("victim")
    table.add_column("with Ray", justify="right")
    table.add_column("ranks", justify="right")
    for victim in WITH_RAY:
        table.add_row(victim, str(hit[True][victim]), str(hit[False][victim]) if victim in WITHOUT_RAY else "")
    console.print(table)
    console.print(", ".join(f"{count} {blow}" for blow, count in blows.most_common()))
    exit_codes = ", ".join(f"{count} x {code}" for code, count in sorted(endings.items()))
    console.print(f"{launches} launches, {increments} increments, exit codes: {exit_codes}")
    console.print(f"{failures} storms failed")
    return 1 if failures else 0


def _total(hit: dict[bool, Counter[str]]) -> int:
    return sum(each.total() for each in hit.values())
