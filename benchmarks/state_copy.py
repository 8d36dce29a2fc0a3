"""What a commit costs with a copy of State on a second node: the same small transactions with and without it, in turn.

Both servers are on this machine: the network is not in it, and they share a disk and the processors.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.replica import Replica
from laggard.kvstore.server.process import Fsync, StateServer
from laggard.kvstore.state.mapping import State
from laggard.kvstore.state_copy import CopySource

__all__ = ["main"]

DEADLINE_S = 60.0


def main(argv: list[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks state-copy", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument("--transactions", type=int, default=500, help="in each repetition (default: %(default)s)")
    parser.add_argument("--fsync", choices=get_args(Fsync), default="always", help="of the primary's server")
    parser.add_argument("--directory", type=Path, help="directory for the servers' data (default: a temporary one)")
    options = parser.parse_args(argv)
    times_s: dict[tuple[int, bool], list[float]] = {}
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as folder,
        StateServer.start(Path(folder) / "state", job="bench", fsync=options.fsync) as server,
    ):
        source = CopySource(server.endpoint)
        replica = Replica(Path(folder) / "copy", Path(folder) / "copy.sock", server.endpoint, source.admit())
        try:
            _await(replica)
            begin_launch(source.client, server.endpoint, 0)
            state = State(source.client, server.endpoint, 0)
            for size_bytes in (0, 64 << 10):
                for repetition in range(2 * options.repeats):
                    copied = bool(repetition % 2)
                    source.set_awaited(awaited=copied)
                    times = times_s.setdefault((size_bytes, copied), [])
                    times += _commit(state, options.transactions // 2, b"x" * size_bytes)
        finally:
            replica.stop()
            source.close()
    sys.stdout.write(f"appendfsync {options.fsync}, medians and quartiles of a transaction in ms\n")
    for (size_bytes, copied), times in times_s.items():
        low, middle, high = (1000 * quartile for quartile in statistics.quantiles(times, n=4))
        what = "with a copy" if copied else "without"
        sys.stdout.write(f"{size_bytes >> 10:>3} KiB  {what:<12} {middle:6.2f}   {low:.2f}-{high:.2f}\n")
    return 0


def _await(replica: Replica) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not replica.is_complete():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the replica is not complete: {replica.complaint()}")
        time.sleep(0.05)


def _commit(state: State, count: int, value: bytes) -> Sequence[float]:
    times_s = []
    for _ in range(count):
        began_s = time.perf_counter()
        with state.transaction() as transaction:
            transaction.increment("n")
            transaction["value"] = value
        times_s.append(time.perf_counter() - began_s)
    return times_s
