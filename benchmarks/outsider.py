"""What an outsider costs a job: steps per second while somebody at another address scans its ports or holds them.

The job has two virtual nodes; with ``--slurm`` two nodes of a cluster with Slurm's own daemons, whose machines are
network namespaces, which needs root. All processes of the job share one processor, so that whatever an attack costs
them is missing from the program; the outsider has the other ones. With ``--program-alone`` the program has that
processor to itself, as on a node that has some to spare, and everything else of the job shares the others with the
outsider. The outsider's connections come from an address that no node has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.machine import description
from benchmarks.outsider_sites import Outsider, Place, Watched, missing_for_slurm, slurm_site, virtual_site
from benchmarks.tables import table

__all__ = ["main"]

SETTLE_S = 0.5
ALL = "all at once"
# Virtual nodes have loopback addresses; of a real one, these cannot be reached from another machine.
ON_LOOPBACK = {"telemetry server"}


class Block(NamedTuple):
    """What an attack changed: steps per second, and seconds per second on a processor of what is not the program."""

    change: float
    processor_share: float
    connections_per_s: float


def main(argv: list[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks outsider", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of blocks of each attack (default: %(default)s)")
    parser.add_argument("--block", type=float, default=2.0, help="seconds of each block (default: %(default)s)")
    parser.add_argument("--attacks", default="scan,hold", help="which (default: %(default)s)")
    parser.add_argument("--only", default="", help="only the ports whose owner begins so")
    parser.add_argument("--slurm", action="store_true", help="a job on real Slurm daemons, with srun's ports")
    parser.add_argument("--program-alone", action="store_true", help="leave a processor to the program")
    options = parser.parse_args(argv)
    print(description(), flush=True)
    if options.slurm and (missing := missing_for_slurm()):
        print(f"the Slurm cluster is skipped: it {missing}")
        return 0
    own, *others = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, {own})
    with (slurm_site if options.slurm else virtual_site)(others) as (job, outsider):
        if options.program_alone and others:
            job.separate(own, others)
        of_job = "program" if options.program_alone else "job"
        print(f"the {of_job} on processor {own}, the outsider on {others or own}")
        ports = job.ports()
        for owner, places in ports.items():
            print(f"{owner}: {', '.join(f'{address}:{port}' for address, port in places)}", flush=True)
        rows = []
        everything = [place for owner, places in ports.items() if owner not in ON_LOOPBACK for place in places]
        for what in options.attacks.split(","):
            wanted = {ALL: everything} if what == "scan" else {**ports, ALL: everything}
            for owner, places in wanted.items():
                if not owner.startswith(options.only):
                    continue
                blocks = [_pair(job, outsider, what, options.block, places) for _ in range(options.repeats)]
                rows.append(_row(what, owner, blocks))
                print(
                    f"{what}, {owner}: {rows[-1][2]}/s, {rows[-1][3]}, {rows[-1][5]} of a processor",
                    file=sys.stderr,
                    flush=True,
                )
    head = ("attack", "ports", "connections per second", "steps per second", "worst", "processor time of the servers")
    print("\n".join(["", *table(head, rows)]))
    return 0


def _pair(job: Watched, outsider: Outsider, what: str, seconds: float, places: Sequence[Place]) -> Block:
    """Count undisturbed, then under an attack, then undisturbed again."""
    before = job.rates(seconds / 2)
    outsider.attack(what, seconds + SETTLE_S, places)
    attacked = job.rates(seconds)
    n_connections = outsider.connections()
    time.sleep(SETTLE_S)
    after = job.rates(seconds / 2)
    return Block(
        2 * attacked.steps / (before.steps + after.steps) - 1,
        attacked.processor - (before.processor + after.processor) / 2,
        n_connections / (seconds + SETTLE_S),
    )


def _row(what: str, owner: str, blocks: Sequence[Block]) -> tuple[str, ...]:
    changes = [block.change for block in blocks]
    rate = statistics.median(block.connections_per_s for block in blocks)
    share = statistics.median(block.processor_share for block in blocks)
    return what, owner, f"{rate:,.0f}", f"{statistics.median(changes):+.0%}", f"{min(changes):+.0%}", f"{share:+.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
