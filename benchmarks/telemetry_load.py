"""Telemetry under load: sixteen processes fill one node's store while a dashboard is drawn, and Prometheus beside it.

Prometheus scrapes the newest value of the same series once a second, so it has a sample where laggard has a thousand.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.telemetry_job import DEADLINE_S, Job, cpu_s, running_job, started, wait_for

__all__ = ["print_load"]

N_PROCESSES, N_METRICS = 16, 10
REFRESH_S = 1.0
RANGES_S = (60, 900)
MIB = 2**20

# On a node the program has processors of its own; here it gives way to those who are measured.
ADD = """
import os, sys, time
os.nice(10)
from laggard.telemetry import Telemetry
rate, seconds = float(sys.argv[1]), float(sys.argv[2])
telemetry = Telemetry(per_process=True)
names = [f"load{i}" for i in range(10)]
begun, count = time.perf_counter(), 0
while (elapsed := time.perf_counter() - begun) < seconds:
    for _ in range(int(elapsed * rate) - count):
        telemetry.add_data(names[count % 10], count % 1000 * 0.5)
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
"""The dashboard: aggregator, downsampling function, whether it is a rate."""

THEIRS = [
    "avg(load{})", "max(load{})", "min(load{})", "sum(load{})", "quantile(0.95, load{})", "load{}",
    "max_over_time(load{}[5s])", "avg(last_over_time(load{}[5s]))", "sum(count_over_time(load{}[5s]))",
    "stddev(load{})", "max(load{})", "avg(rate(load{}[5s]))", "quantile(0.5, load{})",
    "avg(quantile_over_time(0.95, load{}[5s]))", "max(quantile_over_time(0.5, load{}[5s]))",
]  # fmt: skip


def print_load(seconds: float, rate: int) -> None:
    """Measure and print.

    Parameters
    ----------
    seconds
        How long the load lasts.
    rate
        Samples per second, of all processes together.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laggard-")))
        (directory / "telemetry.yaml").write_text("reading_needs_token: false\n")
        job = stack.enter_context(running_job(directory))
        prometheus = stack.enter_context(_prometheus(directory, job.port)) if shutil.which("prometheus") else None
        loaders = [_loader(job, rate / N_PROCESSES, seconds) for _ in range(N_PROCESSES)]
        ours, theirs, resident, begun_s, used_s = [], [], [], time.monotonic(), cpu_s(job.agent)
        failed = refreshes = 0
        while any(loader.poll() is None for loader in loaders):
            due_s = time.monotonic() + REFRESH_S
            for range_s in RANGES_S:
                took, wrong = _refresh(job.port, range_s)
                ours += took
                failed += wrong
            if prometheus is not None:
                theirs += _refresh_theirs(prometheus[0])
            refreshes += 1
            resident.append(job.agent.memory_info().rss)
            time.sleep(max(0.0, due_s - time.monotonic()))
        share = (cpu_s(job.agent) - used_s) / (time.monotonic() - begun_s)
        added, dropped = (sum(column) for column in zip(*map(_ended, loaders), strict=True))
        found = job.newest("telemetry_dropped").get("", (0, 0.0))[1]
        print(f"under load: {N_PROCESSES} processes, {added / seconds:,.0f} samples/s for {seconds:g} s")
        print(f"  {dropped:.0f} dropped by the processes, {found:,.0f} packed ones dropped early by the node's limit")
        print(f"  node's process: at most {max(resident) / MIB:.0f} MiB resident, {100 * share:.0f} % of a core")
        size_mb, samples = job.newest("db_size")[""][1], job.samples()
        print(f"  {size_mb:.1f} MB for {samples:,} samples, {1e6 * size_mb / max(1, samples):.1f} bytes each")
        print(f"query of a panel ({len(PANELS)} panels, {refreshes} refreshes)    median   95th percentile   slowest")
        _print_times("laggard, the last minute and 15 minutes", ours)
        print(f"  {failed} of them failed")
        if prometheus is not None:
            _print_times("Prometheus, the last minute", theirs)
            _print_prometheus(*prometheus)
        print()


def _print_times(name: str, times_s: list[float]) -> None:
    if times_s:
        ranked = sorted(times_s)
        median, p95 = statistics.median(ranked), ranked[int(0.95 * len(ranked))]
        print(f"  {name:<40} {1000 * median:8.1f} ms  {1000 * p95:10.1f} ms  {1000 * ranked[-1]:8.1f} ms")


def _loader(job: Job, rate: float, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ADD, str(rate), str(seconds)]
    return subprocess.Popen(command, env=job.variables, stdout=subprocess.PIPE, text=True)


def _ended(loader: subprocess.Popen[str]) -> tuple[float, float]:
    output, _ = loader.communicate(timeout=DEADLINE_S)
    count, dropped = map(float, output.split())
    return count, dropped


def _refresh(port: int, range_s: int) -> tuple[list[float], int]:
    """Draw the dashboard once; return how long each panel took, and how many failed."""
    times_s, failed = [], 0
    now_ms = int(time.time() * 1000)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        for place, (aggregator, function, is_rate) in enumerate(PANELS):
            query: dict[str, Any] = {"metric": f"load{place % N_METRICS}", "aggregator": aggregator}
            query |= {"downsample": f"{max(1, range_s // 300)}s-{function}", "rate": is_rate}
            body = json.dumps({"start": now_ms - 1000 * range_s, "end": now_ms, "queries": [query]})
            begun_s = time.perf_counter()
            connection.request("POST", "/api/query", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            times_s.append(time.perf_counter() - begun_s)
            failed += answer.status != 200
    return times_s, failed


def _refresh_theirs(port: int) -> list[float]:
    times_s = []
    now_s = time.time()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        for place, expression in enumerate(THEIRS):
            query = expression.replace("load{}", f"laggard_user_load{place % N_METRICS}")
            asked = urllib.parse.urlencode({"query": query, "start": now_s - 60, "end": now_s, "step": 1})
            begun_s = time.perf_counter()
            connection.request("GET", f"/api/v1/query_range?{asked}")
            answer = connection.getresponse()
            answer.read()
            times_s.append(time.perf_counter() - begun_s)
            if answer.status != 200:
                raise RuntimeError(f"Prometheus refused {query}")
    return times_s


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
