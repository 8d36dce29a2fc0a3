"""Recursive merge sort over the nodes: a process for each half, until a node has too many of them.

    laggard --local-nodes=2 --telemetry-level=2 examples/merge_sort.py --max_size 100000

An AnalysisClient watches the metric ``num_running_processes``; when a node runs ``--limit`` processes more than before
the sort, the recursion stops and each process sorts the piece that it has. The size of that piece is the cutoff.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

import ray

from laggard import AnalysisClient, Job, State, Telemetry

SMALLEST_PIECE = 5000  # never split, whatever the watcher says
WATCH_INTERVAL_S = 0.1
BEFORE_S = 1.0
CUTOFF = "merge_cutoff"
PROCESSES = "num_running_processes"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; refuse invalid values in one line."""
    parser = argparse.ArgumentParser(description="Sort longer and longer lists with more and more processes.")
    add = parser.add_argument
    add("--min_size", type=int, default=100_000, help="length of the first list (default: %(default)s)")
    add("--max_size", type=int, default=1_000_000, help="length of the last list (default: %(default)s)")
    add("--increment", type=int, default=100_000, help="from one list to the next (default: %(default)s)")
    add("--limit", type=int, default=32, help="further processes that a node may run (default: %(default)s)")
    given = parser.parse_args(arguments)
    for name in ("min_size", "increment", "limit"):
        if getattr(given, name) < 1:
            parser.exit(2, f"--{name} {getattr(given, name)} is too small: give at least 1\n")
    if given.max_size < given.min_size:
        parser.exit(2, f"--max_size {given.max_size} is less than --min_size {given.min_size}: nothing to sort\n")
    return given


# num_cpus=0: tasks waiting for their halves must not keep the halves from starting.
# max_calls=1: one process per piece, which ends with it.
@ray.remote(num_cpus=0, max_calls=1, scheduling_strategy="SPREAD")
def merge_sort(piece: list[int], stop: str) -> list[int]:
    """Return the sorted piece; split it unless the recursion is to stop."""
    if len(piece) <= SMALLEST_PIECE or State.current().get(stop, False):
        telemetry = Telemetry()
        telemetry.add_data(CUTOFF, len(piece))
        telemetry.finalize()  # this process ends with this call
        return sorted(piece)
    middle = len(piece) // 2
    halves = [merge_sort.remote(piece[:middle], stop), merge_sort.remote(piece[middle:], stop)]
    return list(heapq.merge(*ray.get(halves)))


class Watcher:
    """Stops the recursion when a node runs too many processes, while the ``with`` block is active."""

    def __init__(self, client: AnalysisClient, stop: str, limit: int) -> None:
        self._client = client
        self._stop = stop
        self._limit = limit
        self._since_s = time.time() - BEFORE_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL_S):
            running = by_host(self._client, PROCESSES, self._since_s)
            if any(counts[-1] > min(counts) + self._limit for counts in running.values()):
                State.current()[self._stop] = True  # every process looks there before it splits
                return


def by_host(client: AnalysisClient, metric: str, start_s: float) -> dict[str, list[float]]:
    """Return the values of a metric since ``start_s``, oldest first, for each node that has any."""
    return {each["tags"]["host"]: list(each["dps"].values()) for each in client.get_data(metric, start_time=start_s)}


def main() -> int:
    """Sort the lists, and print each result per node; the exit code is 0 if all were sorted."""
    given = parse_arguments()
    if (level := Telemetry().level) < 2:
        sys.exit(
            f"{PROCESSES} is collected from telemetry level 2 on, not at {level}: "
            "start this with 'laggard --telemetry-level=2 examples/merge_sort.py'"
        )
    job = Job.current(local=False)
    client = AnalysisClient()
    client.connect(timeout=60)
    ray.init()
    hosts = [node.hostname for node in job.nodes]
    numbers = random.Random(1).choices(range(given.max_size), k=given.max_size)
    all_sorted = True
    print(f"{'List Size':>13}{'Time (seconds)':>18}{'Hostname':>14}{'Processes':>14}{'Cutoff':>10}", flush=True)
    for size in range(given.min_size, given.max_size + 1, given.increment):
        begun_s = time.time()
        stop = f"stop/{job.launch}/{size}"  # a key in State, for this sort only
        with Watcher(client, stop, given.limit):
            found = ray.get(merge_sort.remote(numbers[:size], stop))
        taken_s = time.time() - begun_s
        all_sorted &= found == sorted(numbers[:size])
        running, cutoffs = by_host(client, PROCESSES, begun_s), by_host(client, CUTOFF, begun_s)
        for host in hosts:
            processes = f"{max(running[host]):.0f}" if host in running else "-"  # the node did not answer in time
            cutoff = f"{cutoffs[host][-1]:.0f}" if host in cutoffs else "-"  # no piece was sorted there
            print(f"{size:13d}{taken_s:18.6f}{host:>14}{processes:>14}{cutoff:>10}", flush=True)
    print(f"All lists are {'sorted' if all_sorted else 'NOT SORTED'}.")
    print(f"All available telemetry metrics: {', '.join(sorted(client.get_metrics()))}")
    return 0 if all_sorted else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
