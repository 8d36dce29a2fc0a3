"""Telemetry of many nodes: a thousand simulated nodes publish their rollups to the real server of one primary."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.telemetry_job import DEADLINE_S, Job, cpu_s, running_job
from laggard.kvstore.series.sample_store import key_of
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.rollups import INTERVAL_US, ROLLUPS, Publisher, Rollups, Run
from laggard.telemetry.store.summaries import Summaries, merged, of_samples
from laggard.telemetry.store.tiers import TEN_SECONDS_US, WINDOWS_S, Tiers

__all__ = ["print_scale"]

N_METRICS, N_DEVICES = 25, 8
N_SERIES = N_METRICS * N_DEVICES
HOURS = 6
FEW_NODES = 10
MIB = 2**20


def print_scale(n_nodes: int, seconds: float) -> None:
    """Measure and print: what a rollup costs, and a primary with ``n_nodes`` for some seconds."""
    _print_cost(n_nodes)
    with tempfile.TemporaryDirectory(prefix="laggard-") as directory, running_job(Path(directory)) as job:
        _print_primary(job, n_nodes, seconds)


def _print_cost(n_nodes: int) -> None:
    nodes = [_Node(f"node{number:05}") for number in range(min(FEW_NODES, n_nodes))]
    rollups = Rollups(WINDOWS_S, max_bytes=1 << 40, clock=time.time)
    intervals = HOURS * 3600 * SECOND_US // INTERVAL_US if n_nodes >= FEW_NODES * 10 else 60
    first_us = round(time.time()) * SECOND_US - intervals * INTERVAL_US
    used_s, sizes = 0.0, []
    for interval in range(intervals):
        messages = [node.message(first_us + interval * INTERVAL_US) for node in nodes]
        sizes += [len(message) for message in messages]
        begun_s = time.process_time()
        for message in messages:
            rollups.take(message)
        used_s += time.process_time() - begun_s
    n_series = len(nodes) * N_SERIES
    hours = intervals * INTERVAL_US / SECOND_US / 3600
    print(f"rollups of {n_series:,} series over {hours:.1f} h, every ten seconds")
    print(f"  {used_s / intervals / n_series * 1e6:.2f} us of the primary for each series and interval")
    kilobytes = rollups.history.tiers.nbytes() / n_series / hours * HOURS / 1000
    print(f"  {kilobytes:.1f} kB on the primary for each series and {HOURS} h")
    print(f"  {statistics.mean(sizes) / N_SERIES:.1f} bytes sent for each series and interval\n")


class _Node:
    """A node that has read 200 series twice a second."""

    def __init__(self, host: str) -> None:
        tiers = Tiers({TEN_SECONDS_US: 1e9}, max_bytes=1 << 30, clock=time.time)
        for metric in range(N_METRICS):
            for gpu in range(N_DEVICES):
                tiers.number_of(key_of(f"scale{metric}", {"host": host, "gpu": str(gpu)}))
        self.host = host
        self._publisher = Publisher(Run.new(host, 0), tiers)

    def message(self, start_us: int) -> bytes:
        self._publisher.add(_rows(start_us))
        message = self._publisher.message() or b""
        self._publisher.received()
        return message


@lru_cache(maxsize=2)
def _rows(start_us: int) -> Summaries:
    """Return what a node has read in ten seconds: constants, counts, watts, and curves with one decimal."""
    random = np.random.default_rng(start_us % 2**32)
    times_us = np.tile(start_us + np.arange(20, dtype=np.int64) * SECOND_US // 2, N_SERIES)
    values = random.normal(300, 30, (N_SERIES, 20)).round(3)
    values[::4], values[1::4] = 700.0, random.integers(0, 100, (len(values[1::4]), 20))
    values[2::4] = values[2::4].round(1)
    series = np.repeat(np.arange(N_SERIES, dtype=np.int64), 20)
    return merged(of_samples(series, times_us, values.reshape(-1)), INTERVAL_US)


def _print_primary(job: Job, n_nodes: int, seconds: float) -> None:
    nodes = [_Node(f"node{number:05}") for number in range(n_nodes)]
    with _publishing(job, nodes) as delays_s:
        time.sleep(min(12.0, seconds / 2))  # until all have published
        used_s, state_s, begun_s = cpu_s(job.server), cpu_s(job.state_server), time.monotonic()
        times_s: list[float] = []
        while time.monotonic() - begun_s < seconds:
            times_s.append(_overview(job, len(times_s)))
            time.sleep(0.5)
        elapsed_s = time.monotonic() - begun_s
        share, state_share = (cpu_s(job.server) - used_s) / elapsed_s, (cpu_s(job.state_server) - state_s) / elapsed_s
    ranked = sorted(times_s)
    print(f"{n_nodes:,} nodes x {N_SERIES} series on one primary, for {seconds:g} s")
    print(f"  server: {100 * share:.0f} % of a core, {job.server.memory_info().rss / MIB:.0f} MiB resident")
    print(f"  state server: {100 * state_share:.0f} % of a core")
    print(f"  publishing took {max(delays_s, default=0.0):.2f} s at most")
    print(
        f"  overview of {n_nodes * N_DEVICES:,} series: median {1000 * statistics.median(ranked):.0f} ms, "
        f"95th percentile {1000 * ranked[int(0.95 * len(ranked))]:.0f} ms, of {len(ranked)}\n"
    )


@contextlib.contextmanager
def _publishing(job: Job, nodes: list[_Node]) -> Iterator[array[float]]:
    """Publish every ten seconds, and listen for questions as nodes do, without an answer; overviews ask none."""
    client, endpoint = job.session.client, job.session.endpoint
    ended, delays_s = threading.Event(), array("d")

    def publish() -> None:
        while True:
            begun_s = time.monotonic()
            now_us = round(time.time()) * SECOND_US
            start_us = now_us - now_us % INTERVAL_US - INTERVAL_US
            for node in nodes:
                client.publish(endpoint.key(ROLLUPS), node.message(start_us))
            delays_s.append(time.monotonic() - begun_s)
            if ended.wait(max(0.0, begun_s + INTERVAL_US / SECOND_US - time.monotonic())):
                return

    with client.pubsub() as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(*(endpoint.key("telemetry-ask", node.host) for node in nodes))
        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        try:
            yield delays_s
        finally:
            ended.set()
            thread.join(DEADLINE_S)


def _overview(job: Job, number: int) -> float:
    """Ask for the average of a metric over all devices of all nodes; return how long it took."""
    query = {"metric": f"scale{number % N_METRICS}", "aggregator": "avg", "downsample": "10s-avg", "number": number}
    body = json.dumps({"start": "1h-ago", "queries": [query]})
    connection = http.client.HTTPConnection("127.0.0.1", job.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        begun_s = time.perf_counter()
        connection.request("POST", "/api/query", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
        elapsed_s = time.perf_counter() - begun_s
    if answer.status != 200 or not json.loads(found):
        raise RuntimeError(f"the overview was answered with {answer.status}: {found[:200]!r}")
    return elapsed_s
