"""Telemetry under load: sixteen processes fill one node's store while dashboards are drawn, and Prometheus beside it.

The values are random, so that they cannot be compressed, and all processes have the same priority. The store is filled
first, then read. Prometheus scrapes the newest value of the same series once a second, so it has a sample where laggard
has a thousand.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.telemetry_job import DEADLINE_S, Job, cpu_s, running_job, started, wait_for

__all__ = ["print_load"]

N_PROCESSES, N_METRICS = 16, 10
REFRESH_S = 1.0
RANGES_S = (60, 900)
CONNECTIONS = 6  # that a browser opens to a server
MIB = 2**20

ADD = """
import random, sys, time
from laggard.telemetry import Telemetry
rate, seconds = float(sys.argv[1]), float(sys.argv[2])
telemetry = Telemetry(per_process=True)
names = [f"load{i}" for i in range(10)]
begun, count = time.perf_counter(), 0
while (elapsed := time.perf_counter() - begun) < seconds:
    for _ in range(int(elapsed * rate) - count):
        telemetry.add_data(names[count % 10], random.random())
        count += 1
    time.sleep(0.002)
telemetry.finalize()
print(count, telemetry.dropped)
"""

PANELS = [
    ("avg", "avg", False),
    ("max", "max", False),
    ("min", "min", False),
    ("sum", "sum", False),
    ("p95", "avg", False),
    ("none", "avg", False),
    ("none", "max", False),
    ("avg", "last", False),
    ("sum", "count", False),
    ("dev", "avg", False),
    ("max", "last", False),
    ("avg", "avg", True),
    ("p50", "max", False),
    ("avg", "p95", False),
    ("max", "median", False),
]
"""A dashboard: aggregator, downsampling function, whether it is a rate."""

THEIRS = [
    "avg(load{})", "max(load{})", "min(load{})", "sum(load{})", "quantile(0.95, load{})", "load{}",
    "max_over_time(load{}[5s])", "avg(last_over_time(load{}[5s]))", "sum(count_over_time(load{}[5s]))",
    "stddev(load{})", "max(load{})", "avg(rate(load{}[5s]))", "quantile(0.5, load{})",
    "avg(quantile_over_time(0.95, load{}[5s]))", "max(quantile_over_time(0.5, load{}[5s]))",
]  # fmt: skip


Ask = Callable[[http.client.HTTPConnection, int], int]
"""Asks for a panel, by its place; returns the status."""


def print_load(seconds: float, rate: int) -> None:
    """Measure and print.

    Parameters
    ----------
    seconds
        How long the store is filled, and then twice as long read while it is filled.
    rate
        Samples per second, of all processes together.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laggard-")))
        job = stack.enter_context(running_job(directory))
        prometheus = stack.enter_context(_prometheus(directory, job.port)) if shutil.which("prometheus") else None
        dashboards = [_Dashboard(f"15 panels, {range_s // 60} min", job.port, _ours(range_s)) for range_s in RANGES_S]
        dashboards += [_Dashboard("the page's 10 charts", job.port, _page, n_requests=1)]
        dashboards += [_Dashboard("Prometheus: 15, 1 min", prometheus[0], _theirs)] if prometheus is not None else []
        loaders = [_loader(job, rate / N_PROCESSES, 3 * seconds) for _ in range(N_PROCESSES)]
        watched = [job.agent, job.server]
        before, begun_s = [cpu_s(each) for each in watched], time.monotonic()
        time.sleep(seconds)
        filled, filled_s = [cpu_s(each) for each in watched], time.monotonic()
        while any(loader.poll() is None for loader in loaders):
            due_s = time.monotonic() + REFRESH_S
            for dashboard in dashboards:
                dashboard.draw()
            time.sleep(max(0.0, due_s - time.monotonic()))
        read, read_s = [cpu_s(each) for each in watched], time.monotonic()
        added, dropped = (sum(column) for column in zip(*map(_ended, loaders), strict=True))
        shares = [(b - a) / (filled_s - begun_s) for a, b in zip(before, filled, strict=True)]
        n_panels = sum(len(each.requests_s) for each in dashboards[: len(RANGES_S)])
        n_panels += N_METRICS * len(dashboards[len(RANGES_S)].whole_s)
        above = [b - a - s * (read_s - filled_s) for a, b, s in zip(filled, read, shares, strict=True)]
        print(f"under load: {N_PROCESSES} processes, {added / 3 / seconds:,.0f} samples/s for {3 * seconds:g} s")
        found = job.newest("telemetry_dropped").get("", (0, 0.0))[1]
        print(f"  {dropped:.0f} dropped by the processes, {found:,.0f} packed ones dropped early by the node's limit")
        for name, process, share, more_s in zip(("node's process", "server"), watched, shares, above, strict=True):
            of_panel = f"{1000 * more_s / max(1, n_panels):.1f} ms of processor time for a panel"
            print(f"  {name}: at most {_peak_mib(process):.0f} MiB, {100 * share:.0f} % of a core, {of_panel}")
        size_mb, samples = job.newest("db_size")[""][1], job.samples()
        print(f"  {size_mb:.1f} MB for {samples:,} samples, {1e6 * size_mb / max(1, samples):.1f} bytes each")
        _print_times(dashboards)
        if prometheus is not None:
            _print_prometheus(*prometheus)
        print()


class _Dashboard:
    """Some panels, asked for as a browser does: over some connections at once."""

    def __init__(self, name: str, port: int, ask: Ask, n_requests: int = len(PANELS)) -> None:
        self.name = name
        self.requests_s: list[float] = []
        self.whole_s: list[float] = []
        self.failed = 0
        self._port, self._ask, self._n_requests = port, ask, n_requests

    def draw(self) -> None:
        """Draw all panels once."""
        begun_s, places = time.perf_counter(), iter(range(self._n_requests))

        def draw_some(_: int) -> None:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)) as http_:
                for place in places:
                    asked_s = time.perf_counter()
                    self.failed += self._ask(http_, place) != 200
                    self.requests_s.append(time.perf_counter() - asked_s)

        with ThreadPoolExecutor(CONNECTIONS) as threads:
            list(threads.map(draw_some, range(CONNECTIONS)))
        self.whole_s.append(time.perf_counter() - begun_s)


def _print_times(dashboards: Sequence[_Dashboard]) -> None:
    heading = f"  ms, {len(dashboards[0].whole_s)} refreshes"
    print(f"{heading:<26}request: median   99 %   dashboard: median   99 %   failed")
    for each in dashboards:
        columns = (f"{1000 * at(times_s):.1f}" for times_s in (each.requests_s, each.whole_s) for at in (_median, _p99))
        print("  {:<22} {:>17} {:>6} {:>19} {:>6} {:>8}".format(each.name, *columns, each.failed))


def _median(times_s: Sequence[float]) -> float:
    return statistics.median(times_s or [0.0])


def _p99(times_s: Sequence[float]) -> float:
    return sorted(times_s or [0.0])[int(0.99 * len(times_s))]


def _peak_mib(process: psutil.Process) -> float:
    """Return the most memory that was ever resident."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"))
    return int(found[1]) / 1024 if found else 0.0


def _loader(job: Job, rate: float, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ADD, str(rate), str(seconds)]
    return subprocess.Popen(command, env=job.variables, stdout=subprocess.PIPE, text=True)


def _ended(loader: subprocess.Popen[str]) -> tuple[float, float]:
    output, _ = loader.communicate(timeout=DEADLINE_S)
    count, dropped = map(float, output.split())
    return count, dropped


def _ours(range_s: int) -> Ask:
    def ask(connection: http.client.HTTPConnection, place: int) -> int:
        aggregator, function, is_rate = PANELS[place]
        end_ms = int(time.time() * 1000)
        query: dict[str, Any] = {"metric": f"load{place % N_METRICS}", "aggregator": aggregator}
        query |= {"downsample": f"{max(1, range_s // 300)}s-{function}", "rate": is_rate}
        body = json.dumps({"start": end_ms - 1000 * range_s, "end": end_ms, "queries": [query]})
        connection.request("POST", "/api/query", body, {"Content-Type": "application/json"})
        return _status(connection)

    return ask


def _page(connection: http.client.HTTPConnection, _: int) -> int:
    end_ms = int(time.time() * 1000)
    asked = f"&by=process&points=300&start={end_ms - 60_000}&end={end_ms}"
    connection.request("POST", "/page/curves", json.dumps([f"metric=load{i}{asked}" for i in range(N_METRICS)]))
    return _status(connection)


def _theirs(connection: http.client.HTTPConnection, place: int) -> int:
    query, now_s = THEIRS[place].replace("load{}", f"laggard_user_load{place % N_METRICS}"), time.time()
    asked = urllib.parse.urlencode({"query": query, "start": now_s - 60, "end": now_s, "step": 1})
    connection.request("GET", f"/api/v1/query_range?{asked}")
    return _status(connection)


def _status(connection: http.client.HTTPConnection) -> int:
    answer = connection.getresponse()
    answer.read()
    return answer.status


@contextlib.contextmanager
def _prometheus(directory: Path, target: int) -> Iterator[tuple[int, psutil.Process]]:
    """Run Prometheus, which scrapes the telemetry server every second."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    scrape = {"job_name": "laggard", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
    (directory / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}", "--log.level=error"]
    command += [f"--storage.tsdb.path={directory / 'prometheus'}", f"--web.listen-address=127.0.0.1:{port}"]
    with started(command) as process:
        wait_for(lambda: _metric(port, "up") is not None)
        yield port, psutil.Process(process.pid)


def _metric(port: int, name: str) -> float | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", f"/api/v1/query?query={urllib.parse.quote(name)}")
            result = json.loads(connection.getresponse().read())["data"]["result"]
        except (OSError, http.client.HTTPException, KeyError, json.JSONDecodeError):
            return None  # not up yet
    return float(result[0]["value"][1]) if result else None


def _print_prometheus(port: int, process: psutil.Process) -> None:
    samples = _metric(port, "sum(sum_over_time(scrape_samples_scraped[1h]))") or 0
    resident = process.memory_info().rss
    print(f"  Prometheus: {resident / MIB:.0f} MiB resident for {samples:,.0f} samples")
