"""What sections cost a program: one use of each kind, and the thread that sends them.

Measured in blocks of a thousand uses in a process of a launch, whose samples go to a real state server; in processor
time, so that other programs on the machine do not count, and less the cost of an empty loop.  On a machine with a GPU
and CuPy, also with events on it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import thread_time

import laggard
from benchmarks import section_ranks
from benchmarks.machine import description
from benchmarks.tables import table
from laggard.collectors import sections
from laggard.collectors.device import gpu_names
from laggard.collectors.section_sender import SectionReadings
from laggard.collectors.sections import MAX_BUFFERED, Section
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.server.process import StateServer

__all__ = ["main"]

BLOCK = 1000


def nothing() -> None:
    pass


def one() -> None:
    with laggard.section("forward"):
        pass


def nested() -> None:
    with laggard.section("step"), laggard.section("all_reduce", waits=True):
        pass


@contextmanager
def launch() -> Iterator[None]:
    """Make this process one of a launch, with a state server of its own."""
    with tempfile.TemporaryDirectory() as folder, StateServer.start(Path(folder, "state"), job="sections") as server:
        endpoint_file = Path(folder, "endpoint.json")
        server.endpoint.save(endpoint_file)
        os.environ |= {ENDPOINT_FILE: str(endpoint_file), LAUNCH: "0", NODE: "node1", "RANK": "0"}
        with server.endpoint.connect() as client:
            begin_launch(client, server.endpoint, 0)
            record = LaunchRecord(0, (NodeRecord("node1", "127.0.0.1", ()),), ())
            Control(client, server.endpoint, 0).write_launch(record)
            sections._sections.clear()  # those of a process in no job
            yield
            del os.environ[ENDPOINT_FILE]
            current_session().client.close()


def block_seconds(use: Callable[[], None]) -> float:
    begun_s = thread_time()
    for _ in range(BLOCK):
        use()
    return (thread_time() - begun_s) / BLOCK


def cost_row(what: str, use: Callable[[], None], blocks: int, *, uses: int = 1) -> tuple[str, str, str]:
    """Measure a use in alternation with an empty one, so that both see the same machine."""
    costs = sorted(block_seconds(use) - block_seconds(nothing) for _ in range(blocks))
    return what, f"{1e6 * statistics.median(costs) / uses:.2f}", f"{1e6 * costs[int(0.95 * blocks)] / uses:.2f}"


def interval_ms(n_sections: int) -> float:
    """Return the milliseconds that it takes to sum up one interval of sections with full buffers."""
    buffered = []
    for number in range(n_sections):
        section = Section(f"section {number}")
        section.seconds.extend(0.01 + 1e-6 * (7 * place % 4099) for place in range(MAX_BUFFERED))
        buffered.append(section)
    begun_s = thread_time()
    SectionReadings().take(buffered, {"host": "node1", "rank": "0"}, time.time())
    return 1e3 * (thread_time() - begun_s)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sections", description=__doc__)
    parser.add_argument("--ranks", action="store_true", help="print only how soon slow ranks of a DDP job are found")
    parser.add_argument("--repeats", type=int, default=3, help="jobs of each kind, with --ranks (default: %(default)s)")
    parser.add_argument("--slower-by", type=int, metavar="PERCENT", help="only this slowdown, with --ranks")
    parser.add_argument("--blocks", type=int, default=2000, help="blocks of 1,000 uses (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(description())
    if options.ranks:
        only = [] if options.slower_by is None else [[1 + options.slower_by / 100]]
        print("", *table(section_ranks.HEAD, section_ranks.rows(options.repeats, *only)), sep="\n")
        return 0
    blocks = options.blocks
    rows = [cost_row("outside a job", one, blocks)]
    with launch():
        rows.append(cost_row("in a job", one, blocks))
        rows.append(cost_row("in a job, one within another that waits, each", nested, blocks, uses=2))
        if gpu_names() and find_spec("cupy"):
            import_module("cupy").zeros(4)
            sections._device.look_again()
            rows.append(cost_row("in a job, on a GPU", one, blocks))
    print("\n".join(["", *table(["one use of a section", "median, us", "95 % of blocks below, us"], rows)]))
    sums = [(n, f"{statistics.median(interval_ms(n) for _ in range(5)):.2f}") for n in (1, 10, 64)]
    print("\n".join(["", *table(["sections with 4,096 uses each", "processor time per interval, ms"], sums)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
