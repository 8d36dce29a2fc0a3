"""Telemetry: cost of a sample, size of the store, speed of queries, and robustness against bad requests.

Given a Python with ``dragonhpc[telemetry]``, the benchmark also measures Dragon's own code in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.machine import description
from benchmarks.telemetry_fuzz import BadAnswerError, fuzz
from benchmarks.telemetry_hung_node import print_hung_node
from benchmarks.telemetry_job import DEADLINE_S, Job, cpu_s, post, running_job, started, wait_for
from benchmarks.telemetry_load import print_load
from benchmarks.telemetry_scale import print_scale
from laggard.kvstore.client.environment import NODE
from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.sending.batches import socket_name
from laggard.telemetry.sending.sender import BatchSocket
from laggard.telemetry.server.runtime import TOKEN_FILE

__all__ = ["main"]

QUERY_SERIES, QUERY_POINTS = 64, 300
FAKE_NVML = Path(__file__).parents[1] / "tests" / "integration" / "fake_nvml.c"
SLICE_S = 0.5

ADD = """
import statistics, sys, time
from laggard.telemetry import Telemetry
rate, seconds, timings = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
telemetry = Telemetry()
costs = []
for _ in range(timings):
    begun = time.perf_counter_ns()
    for _ in range(100):
        telemetry.add_data("loss", 1.5, tagk="rank", tagv="3")
    costs.append((time.perf_counter_ns() - begun) / 100)
    time.sleep(0.001)
telemetry.finalize()
names = [f"metric{i}" for i in range(10)]
begun, count = time.perf_counter(), 0
while (elapsed := time.perf_counter() - begun) < seconds:
    for _ in range(int(elapsed * rate) - count):
        telemetry.add_data(names[count % 10], count * 0.5)
        count += 1
elapsed = time.perf_counter() - begun
telemetry.finalize()
costs.sort()
print(statistics.median(costs), costs[timings * 95 // 100], count, count / elapsed, telemetry.dropped)
"""

EXIT = """
import os, sys, time
from laggard.telemetry import Telemetry
telemetry = Telemetry()
until = time.perf_counter() + 0.7 + 0.01 * int(sys.argv[1])
while time.perf_counter() < until:
    last = time.time()
    telemetry.add_data("exit", 1.0, last, tagk="run", tagv=sys.argv[1])
    time.sleep(0.001)
print(last, flush=True)
os._exit(0)
"""

READ = """
import statistics, time
from laggard.telemetry import AnalysisClient
client = AnalysisClient()
client.connect()
times = []
for _ in range(21):
    begun = time.perf_counter()
    (series,) = client.get_data("many")
    times.append(time.perf_counter() - begun)
assert len(series["dps"]) == 30_000
print(statistics.median(times), max(times))
"""


@dataclass(frozen=True)
class Amount:
    """How much to measure where there is no option: timings of 100 calls, abrupt exits, time slices, and so on."""

    timings: int = 1000
    exits: int = 10
    slices: int = 10
    load_s: float = 20.0
    windows_s: tuple[int, ...] = (300, 3600)
    under_load_s: float = 50.0
    load_rate: int = 180_000
    scale_nodes: int = 1000
    scale_s: float = 40.0
    hangs: int = 10


QUICK = Amount(
    timings=50,
    exits=1,
    slices=1,
    load_s=1.0,
    windows_s=(10,),
    under_load_s=4.0,
    load_rate=20_000,
    scale_nodes=20,
    scale_s=12.0,
    hangs=1,
)
_PARTS = ("add", "query", "read", "agent", "store", "fuzz", "load", "scale", "hung-node")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks telemetry", description=__doc__)
    parser.add_argument("--dragon", type=Path, metavar="PYTHON", help="a Python interpreter with dragonhpc[telemetry]")
    parser.add_argument(
        "--rate", type=int, default=300_000, help="samples per second to sustain (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to sustain them (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=20_000, help="bad requests to send (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the bad requests (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="measure only a little of everything else, as a smoke test"
    )
    parser.add_argument("--only", choices=_PARTS, action="append", help="measure only this part; may be repeated")
    options = parser.parse_args(argv)

    amount = QUICK if options.quick else Amount()
    only = options.only or _PARTS
    print(description(), end="\n\n")
    with tempfile.TemporaryDirectory(prefix="laggard-") as directory, running_job(Path(directory)) as job:
        if "add" in only:
            _print_add(job, options.rate, options.seconds, amount, options.dragon)
        if "query" in only:
            _print_query(job, amount.slices, options.dragon)
        if "read" in only:
            _print_read(job)
        if "agent" in only:
            _print_agent(job, amount.load_s)
        if "store" in only:
            _print_store(amount.windows_s)
        wrong = _print_fuzz(job, options.requests, options.seed) if "fuzz" in only else 0
    if "load" in only:
        print_load(amount.under_load_s, amount.load_rate)
    if "scale" in only:
        print_scale(amount.scale_nodes, amount.scale_s)
    if "hung-node" in only:
        print_hung_node(amount.hangs)
    return wrong


def _print_add(job: Job, rate: int, seconds: float, amount: Amount, dragon: Path | None) -> None:
    before = job.samples()
    median, p95, count, reached, dropped = job.run(ADD, rate, seconds, amount.timings)
    wait_for(lambda: job.samples() - before >= count - dropped)
    print("add_data, in the calling thread     median   95th percentile       samples/s   dropped")
    us, p95_us = median / 1000, p95 / 1000
    print(f"  laggard                     {us:9.2f} us  {p95_us:12.2f} us  {reached:14,.0f}  {dropped:8.0f}")
    print(f"  ({count:,.0f} samples in {seconds:g} s, paced; all but those dropped were in the store afterwards)")
    loss_s = _exit_loss_s(job, amount.exits)
    print(f"  {amount.exits} processes that exited abruptly lost at most their last {1000 * loss_s:.0f} ms")
    if dragon is not None:
        with _dragon(dragon, "store") as (port, _):
            n_calls = 500
            ns, total_ns = _numbers([str(dragon), "-m", "benchmarks.telemetry_peer", "add", str(n_calls), str(port)])
            rate_per_s = n_calls / total_ns * 1e9
            print(f"  Dragon                      {ns / 1000:9.2f} us  {'':15}  {rate_per_s:14,.0f}")
            print(f"  {ns / median:,.0f} times faster per call")
    print()


def _exit_loss_s(job: Job, exits: int) -> float:
    """Return the longest time before an abrupt exit from which samples are missing."""
    ends = {str(run): job.run(EXIT, run)[0] for run in range(exits)}
    wait_for(lambda: job.newest("exit").keys() == ends.keys())
    return max(ends[run] - time_s for run, (time_s, _) in job.newest("exit").items())


def _print_query(job: Job, slices: int, dragon: Path | None) -> None:
    start = _send_ticks(job)
    by_gpu = {"type": "wildcard", "tagk": "gpu", "filter": "*", "groupBy": True}
    query = {"metric": "power", "aggregator": "avg", "filters": [by_gpu]}
    # Dragon's samples end when its server starts.
    theirs = json.dumps({"start": (int(time.time()) - QUERY_POINTS) * 1000, "queries": [query]}).encode()
    numbers = itertools.count()

    def ours(number: int) -> bytes:
        # The number makes it a different query with an answer of the same size.
        marked = {**query, "downsample": "1s-avg", "number": number}
        return json.dumps({"start": start, "end": start + QUERY_POINTS + 1, "queries": [marked]}).encode()

    wait_for(lambda: _n_points(post(job.port, ours(next(numbers)))) == QUERY_SERIES * QUERY_POINTS)
    with contextlib.ExitStack() as stack:
        rows = [
            _Queried("laggard, distinct queries", job.port, lambda: ours(next(numbers)), job.processes),
            _Queried("laggard, repeated query", job.port, lambda: ours(0), job.processes),
        ]
        if dragon is not None:
            port, process = stack.enter_context(_dragon(dragon, "query", QUERY_SERIES, QUERY_POINTS))
            rows.append(_Queried("Dragon", port, lambda: theirs, [process, *process.children(recursive=True)]))
        for n_clients in (1, 4):
            _print_queried(rows, n_clients, slices)


def _send_ticks(job: Job) -> int:
    """Fill 64 series, tick by tick as collectors do; return the Unix time before the first tick."""
    # Some of them lie in the future, since the node drops samples older than five minutes.
    first_us = (int(time.time()) - QUERY_POINTS // 3) * 1_000_000
    with contextlib.closing(_batch_socket(job)) as batches:
        for tick in range(QUERY_POINTS):
            times, values = np.array([first_us + tick * 1_000_000]), np.array([300.0 + tick % 7])
            keys = (key_of("power", {"host": "node1", "gpu": str(gpu)}) for gpu in range(QUERY_SERIES))
            assert batches.send(dict.fromkeys(keys, (times, values)))  # noqa: S101
    return first_us // 1_000_000 - 1


def _batch_socket(job: Job) -> BatchSocket:
    return BatchSocket(job.session.environment.endpoint_file.parent / socket_name("node1"))


@dataclass
class _Queried:
    """A server, its query, how long each answer took, and the CPU time of its processes."""

    name: str
    port: int
    body: Callable[[], bytes]
    processes: Sequence[psutil.Process]
    times_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    def ask(self, n_clients: int) -> None:
        """Query the server for one time slice, with this number of clients at once."""
        begun_s = sum(map(cpu_s, self.processes))
        with ThreadPoolExecutor(n_clients) as clients:
            for times_s in clients.map(lambda _: self._ask(), range(n_clients)):
                self.times_s += times_s
        self.cpu_s += sum(map(cpu_s, self.processes)) - begun_s

    def _ask(self) -> list[float]:
        times_s: list[float] = []
        connection = http.client.HTTPConnection("localhost", self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            until_s = time.perf_counter() + SLICE_S
            while (begun_s := time.perf_counter()) < until_s:
                connection.request("POST", "/api/query", self.body(), {"Content-Type": "application/json"})
                answer = connection.getresponse().read()
                times_s.append(time.perf_counter() - begun_s)
        assert _n_points(answer) >= QUERY_SERIES * (QUERY_POINTS - 2)  # noqa: S101
        return times_s


def _print_queried(rows: Sequence[_Queried], n_clients: int, slices: int) -> None:
    for row in rows:
        row.times_s, row.cpu_s = [], 0.0
    for _ in range(slices):  # in turn, so that other load on the machine affects all equally
        for row in rows:
            row.ask(n_clients)
    clients = "1 client " if n_clients == 1 else f"{n_clients} clients"
    print(
        f"query, {QUERY_SERIES} x {QUERY_POINTS} points, {clients}     median   95th percentile   queries/s   CPU/query"
    )
    medians, rates, costs = [], [], []
    for row in rows:
        times_s = sorted(row.times_s)
        medians.append(statistics.median(times_s))
        rates.append(n_clients * len(times_s) / sum(times_s))
        costs.append(row.cpu_s / len(times_s))
        p95_s = times_s[int(0.95 * len(times_s))]
        numbers = (
            f"{1000 * medians[-1]:10.1f} ms  {1000 * p95_s:12.1f} ms  {rates[-1]:10.1f}  {1000 * costs[-1]:7.1f} ms"
        )
        print(f"  {row.name:<26} {numbers}")
    for i, row in enumerate(rows[: 2 if len(rows) > 2 else 0]):
        faster, more, cheaper = medians[-1] / medians[i], rates[i] / rates[-1], costs[-1] / costs[i]
        print(f"  {row.name}: {faster:.1f} x as fast as Dragon, {more:.1f} x as many, 1/{cheaper:.1f} of the CPU")
    print()


def _n_points(answer: bytes) -> int:
    return sum(len(element["dps"]) for element in json.loads(answer))


def _print_read(job: Job) -> None:
    times = int(time.time()) * 1_000_000 - np.arange(30_000, dtype=np.int64)[::-1] * 1000
    with contextlib.closing(_batch_socket(job)) as batches:
        assert batches.send({key_of("many", {"host": "node1"}): (times, np.random.default_rng(1).normal(size=30_000))})  # noqa: S101
    time.sleep(0.5)  # until it is stored
    median_s, worst_s = job.run(READ)
    print(f"get_data of 30,000 points: {1000 * median_s:.1f} ms, the slowest of 21 {1000 * worst_s:.1f} ms\n")


def _print_agent(job: Job, load_s: float) -> None:
    print(f"node agent, level 4, 2 Hz, 8 virtual devices: {_load(job.agent, load_s)}")
    with tempfile.TemporaryDirectory(prefix="laggard-") as directory:
        library = Path(directory) / "libnvidia-ml.so.1"
        built = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, FAKE_NVML], check=False)
        if built.returncode == 0:
            variables = {name: value for name, value in job.variables.items() if "VIRTUAL" not in name}
            variables |= {NODE: "node2", "LD_LIBRARY_PATH": directory, "FAKE_NVML_COUNT": "8"}
            with started([sys.executable, "-m", "laggard.collectors.metrics.process"], variables) as agent:
                wait_for(lambda: "node2" in NodeAsker(job.session.client, job.session.endpoint).hosts())
                load = _load(psutil.Process(agent.pid), load_s)
                print(f"  8 devices through NVML's binding on a test library: {load}")
    print()


def _load(agent: psutil.Process, load_s: float) -> str:
    time.sleep(load_s / 10)  # until the agent has settled
    used_s, begun_s = cpu_s(agent), time.monotonic()
    time.sleep(load_s)
    share = (cpu_s(agent) - used_s) / (time.monotonic() - begun_s)
    return f"{100 * share:.2f} % of a core, {agent.memory_info().rss / 2**20:.0f} MiB"


def _print_store(windows_s: Sequence[int]) -> None:
    print("store, 200 series at 2 Hz             bytes/sample (tracemalloc)    samples        MB")
    for window_s in windows_s:
        size, n_samples = _measure_store(window_s)
        print(f"  window of {window_s:>4} s {'':20} {size / n_samples:12.2f}  {n_samples:19,}  {size / 1e6:8.2f}")
    print()


def _measure_store(window_s: int) -> tuple[int, int]:
    ticks = 2 * window_s + 60
    columns = [_column(ticks, kind) for kind in range(200)]
    keys = [key_of(f"metric{i // 8}", {"host": "node1", "gpu": str(i % 8)}) for i in range(200)]
    now_s = [1_700_000_000.0]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    store = SampleStore(window_s, clock=lambda: now_s[0])
    for tick in range(ticks):
        now_s[0] += 0.5
        stamp = np.array([round(now_s[0] * 1e6)])
        for key, column in zip(keys, columns, strict=True):
            store.extend(key, stamp, column[tick : tick + 1])
        if tick % 4 == 0:
            store.trim()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used, store.size().samples


def _column(n: int, kind: int) -> NDArray[np.float64]:
    """Return a metric's values: constants, counts, milliwatts, a byte counter, or a slow curve with one decimal."""
    generator = np.random.default_rng(kind)
    values: NDArray[np.float64]
    match kind % 5:
        case 0:
            values = np.full(n, 700.0)
        case 1:
            values = generator.integers(0, 100, n).astype(np.float64)
        case 2:
            values = np.clip(generator.normal(300, 30, n), 0, 700).round(3)
        case 3:
            values = np.cumsum(generator.integers(0, 10**7, n)).astype(np.float64)
        case _:
            values = np.clip(40 + np.cumsum(generator.normal(0, 0.3, n)), 0, 100).round(1)
    return values


def _print_fuzz(job: Job, n_requests: int, seed: int) -> int:
    token = (job.session.environment.endpoint_file.parent / TOKEN_FILE).read_text()
    try:
        answers = fuzz(job.port, token, n_requests=n_requests, random_seed=seed)
    except (BadAnswerError, http.client.HTTPException, OSError) as failure:
        print(f"a request was answered wrongly: {failure!r}")
        return 1
    found = ", ".join(f"{n} x {status or 'closed'}" for status, n in sorted(answers.statuses.items()))
    print(f"{answers.statuses.total():,} bad requests: {found}")
    print(f"  slowest {answers.slowest_s:.2f} s, server at {job.server.memory_info().rss / 2**20:.0f} MiB afterwards")
    return 0


@contextlib.contextmanager
def _dragon(python: Path, command: str, *numbers: int) -> Iterator[tuple[int, psutil.Process]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    arguments = [str(python), "-m", "benchmarks.telemetry_peer", command, str(port), *map(str, numbers)]
    with started(arguments) as process:
        wait_for(lambda: _listens(port))
        yield port, psutil.Process(process.pid)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _numbers(command: Sequence[str]) -> list[float]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in done.stdout.split()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
