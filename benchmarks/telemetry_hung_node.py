"""What a node that hangs costs a dashboard: a node's process is stopped (SIGSTOP), and goes on again.

The dashboard is that of all nodes: its 15 panels are asked for six at a time, as a browser does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import laggard.telemetry
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE, TELEMETRY_LEVEL
from laggard.kvstore.server.process import StateServer

__all__ = ["print_hung_node"]

N_NODES = 3
HUNG = "node2"
AT_ONCE = 6
DEADLINE_S = 60.0
SETTLE_S = 5.0
DASHBOARD = Path(laggard.telemetry.__file__).parent / "grafana" / "overview.json"


def print_hung_node(loads: int) -> None:
    """Print how long a dashboard takes, ``loads`` times each: before, when a node has just hung, and from then on."""
    print(
        f"a dashboard of 15 panels, {N_NODES} nodes   median   slowest   panels without the node   panels that failed"
    )
    with tempfile.TemporaryDirectory(prefix="laggard-") as folder, _cluster(Path(folder)) as (port, hung):
        _wait_for(lambda: not _load(port).lacking)
        _print("all nodes answer", [_load(port) for _ in range(loads)])
        rows: list[tuple[_Loaded, _Loaded, float]] = []
        for _ in range(loads):
            os.kill(hung, signal.SIGSTOP)
            first = _load(port)
            _wait_for(lambda: not _health(port)[HUNG]["up"])
            later = _load(port)
            os.kill(hung, signal.SIGCONT)
            begun_s = time.monotonic()
            _wait_for(lambda: not _load(port).lacking)
            rows.append((first, later, time.monotonic() - begun_s))
            time.sleep(SETTLE_S)  # until it is waited for again
    _print("just hung", [first for first, _, _ in rows])
    _print("hung for longer", [later for _, later, _ in rows])
    print(f"  it was in all panels again {statistics.median(back_s for _, _, back_s in rows):.1f} s after it went on\n")


@dataclass(frozen=True)
class _Loaded:
    """How long a dashboard took, and how many of its panels lacked a node, or failed."""

    took_s: float
    lacking: int
    failed: int


def _print(name: str, loaded: list[_Loaded]) -> None:
    times_ms = [1000 * each.took_s for each in loaded]
    lacking, failed = (max(getattr(each, which) for each in loaded) for which in ("lacking", "failed"))
    median_ms = statistics.median(times_ms)
    print(f"  {name:<34} {median_ms:5.0f} ms  {max(times_ms):5.0f} ms  {lacking:>24}  {failed:>19}")


_numbers = count()


def _load(port: int) -> _Loaded:
    queries = [panel["targets"][0] for panel in json.loads(DASHBOARD.read_text())["panels"] if panel.get("targets")]
    begun_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as browser:
        answers = list(browser.map(lambda query: _panel(port, query), queries))
    took_s = time.monotonic() - begun_s
    lacking = sum(bool(missing) for _, missing in answers)
    return _Loaded(took_s, lacking, sum(status != 200 for status, _ in answers))


def _panel(port: int, target: Mapping[str, Any]) -> tuple[int, str]:
    """Ask for one panel; return the status, and the nodes that are missing."""
    filters = [{**each, "filter": re.sub(r"\$\w+", ".*", each["filter"])} for each in target["filters"]]
    query = {**target, "filters": filters, "downsample": "1s-avg", "number": next(_numbers)}  # no answer is reused
    body = json.dumps({"start": int(time.time()) - 300, "queries": [query]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("POST", "/api/query", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get("X-Laggard-Missing-Nodes", "")


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[tuple[int, int]]:
    """Run the telemetry of some nodes and the server; yield its port, and the process of the node that is to hang."""
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(StateServer.start(folder / "state", job="benchmark"))
        pids: dict[str, int] = {}
        for node in (f"node{number}" for number in range(1, N_NODES + 1)):
            own = folder / node
            own.mkdir(mode=0o700)
            state.endpoint.save(own / "endpoint.json")
            variables = {ENDPOINT_FILE: str(own / "endpoint.json"), LAUNCH: "0", NODE: node, TELEMETRY_LEVEL: "3"}
            variables |= {"LAGGARD_VIRTUAL_DEVICES": "8", "LAGGARD_VIRTUAL_DEVICE_DIR": str(own)}
            if not pids:
                server = stack.enter_context(_process("laggard.telemetry.server", variables, "--port", "0"))
                assert server.stdout is not None  # noqa: S101
                port = int(server.stdout.readline().rsplit(b":", 1)[1])
            pids[node] = stack.enter_context(_process("laggard.collectors.metrics.process", variables)).pid
        _wait_for(lambda: len(_health(port)) == N_NODES)
        yield port, pids[HUNG]


def _health(port: int) -> Mapping[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        found: Mapping[str, Any] = json.loads(connection.getresponse().read())["nodes"]
        return found


@contextlib.contextmanager
def _process(module: str, variables: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", module, *arguments]
    process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def _wait_for(done: Callable[[], object]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError("timed out waiting for a process of the benchmark")
        time.sleep(0.05)
