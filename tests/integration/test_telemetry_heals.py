"""Nodes that hang, clocks that are apart, processes that die: real processes, stopped and killed."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.detectors.evidence import WrongResults
from laggard.detectors.verdict import Evidence, Verdict
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE, TELEMETRY_LEVEL
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.server.process import StateServer
from laggard.resilience.record.journal import Journal
from tests.integration.serving import Served, serve, strict
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
# A node whose clock is ahead of everybody else's.
AHEAD_S = 3600
# Bounds a hang of the test only.
WAIT_S = 60.0
AHEAD = f"""
import time
from laggard.collectors.metrics import process
of_this_machine = time.time
time.time = lambda: of_this_machine() + {AHEAD_S}
raise SystemExit(process.main())
"""


@contextlib.contextmanager
def node_process(
    state_server: StateServer, directory: Path, name: str, program: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a node's telemetry in a process of its own."""
    folder = directory / name
    folder.mkdir(mode=0o700)
    state_server.endpoint.save(folder / "endpoint.json")
    variables = {ENDPOINT_FILE: str(folder / "endpoint.json"), LAUNCH: "0", NODE: name, TELEMETRY_LEVEL: "2"}
    run = ["-c", program] if program else ["-m", "laggard.collectors.metrics.process"]
    process = subprocess.Popen([sys.executable, *run], stdin=subprocess.PIPE, env=variables, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with state_server.endpoint.connect() as client:
        begin_launch(client, state_server.endpoint, 0)
        record = LaunchRecord(0, (NodeRecord("node1", "127.0.0.1", ("0",)),), (), ())
        Control(client, state_server.endpoint, 0).write_launch(record)
    # Longer than a busy machine keeps the node in this process from answering.
    with serve(state_server, tmp_path_factory.mktemp("node1"), settings="query_deadline: 8\n") as server:
        yield server


def health_of(served: Served, node: str) -> dict[str, Any]:
    """Return what ``/health`` says of a node; nothing if it is not known."""
    found: dict[str, Any] = served.json("/health")["nodes"].get(node, {})
    return found


def query(served: Served, **more: object) -> tuple[int, set[str], str, bytes]:
    """Ask for all nodes' load; return the status, the hosts that are in the answer, and those that are said to miss."""
    body = {
        "start": int(time.time()) - 600,
        "end": int(time.time()) + 2 * AHEAD_S,
        "queries": [
            {
                "metric": "load_average",
                "aggregator": "avg",
                "downsample": "10s-avg",
                "filters": [{"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}],
                **more,  # an answer to the same query may be reused
            }
        ],
    }
    status, headers, content = served.request("/api/query", body)
    found = {element["tags"]["host"] for element in strict(content)} if status == 200 else set()
    return status, found, headers.get("x-laggard-missing-nodes", ""), content


def test_a_node_that_hangs_is_missing_from_answers_and_is_back_when_it_answers(
    state_server: StateServer, tmp_path: Path, served: Served
) -> None:
    served.node.store.add("load_average", {"host": "node1"}, round(time.time() * 1e6), 1.0)
    with node_process(state_server, tmp_path, "hanging") as node:
        wait_until(lambda: query(served, number=time.time())[1] == {"node1", "hanging"})
        wait_until(lambda: health_of(served, "hanging").get("up"))

        node.send_signal(signal.SIGSTOP)
        wait_until(lambda: health_of(served, "hanging").get("up") is False)
        assert health_of(served, "node1")["up"]

        answers = [query(served, number=number)[:3] for number in range(5)]

        assert {status for status, _, _ in answers} == {200}
        assert all("node1" in found for _, found, _ in answers)
        assert all("hanging" in missing for _, _, missing in answers)
        assert health_of(served, "hanging")["lag_s"] > 1

        node.send_signal(signal.SIGCONT)
        wait_until(lambda: health_of(served, "hanging").get("up"))
        wait_until(lambda: query(served, number=time.time())[1:3] == ({"node1", "hanging"}, ""))


def test_a_node_whose_clock_is_ahead_answers_like_any_other(
    state_server: StateServer, tmp_path: Path, served: Served
) -> None:
    with node_process(state_server, tmp_path, "ahead", AHEAD):
        wait_until(lambda: "ahead" in query(served, number=time.time())[1])
        wait_until(lambda: health_of(served, "ahead").get("clock_skew_s", 0) != 0)

        assert health_of(served, "ahead")["clock_skew_s"] == pytest.approx(AHEAD_S, abs=60)
        assert abs(health_of(served, "node1")["clock_skew_s"]) < 60


def test_a_question_that_nobody_answers_in_time_is_a_503_and_the_deadline_is_a_setting(tmp_path: Path) -> None:
    with (
        StateServer.start(tmp_path / "state", job="silent") as own,
        own.endpoint.connect().pubsub() as silent,  # type: ignore[no-untyped-call]
    ):
        (tmp_path / "node1").mkdir()
        silent.subscribe(own.endpoint.key("telemetry-ask", "node1"))
        silent.get_message(timeout=1)
        with serve(own, tmp_path / "node1", settings="query_deadline: 0.25\n", has_node=False) as served:
            status, _, _, content = query(served)
            wait_until(lambda: health_of(served, "node1").get("up") is False)
            later, _, _, _ = query(served)

    assert (status, later) == (503, 503)
    error = strict(content)["error"]
    assert error["code"] == 503
    assert "no node answered within 0.25 s" in error["message"]


def test_samples_of_before_the_job_are_refused(served: Served) -> None:
    now_s = int(time.time())
    old, new = (
        {"metric": "put.old", "timestamp": at, "value": 1, "tags": {"host": "x"}} for at in (now_s - 900, now_s)
    )
    token = {"Authorization": f"Bearer {served.token}"}

    only_old = served.request("/api/put", old, token)
    both = served.request("/api/put", [old, new], token)

    assert only_old[0] == 400
    assert "not Unix time within this job" in strict(only_old[2])["errors"][0]["error"]
    assert (both[0], strict(both[2])["success"], strict(both[2])["failed"]) == (400, 1, 1)


def test_samples_from_a_clock_that_is_ahead_are_refused_and_the_newest_value_stays_true(served: Served) -> None:
    now_s = time.time()
    good, ahead = (
        {"metric": "put.ahead", "timestamp": round(now_s + ahead_s), "value": value, "tags": {"host": "x"}}
        for ahead_s, value in ((30, 1), (3600, 2))
    )
    status, _, content = served.request("/api/put", [good, ahead], {"Authorization": f"Bearer {served.token}"})

    assert (status, strict(content)["success"]) == (400, 1)
    (error,) = strict(content)["errors"]
    assert error["datapoint"] == ahead
    assert re.search(r"time is 3\d{3} s ahead of the clock here", error["error"])
    wait_until(lambda: re.search(r"put_ahead\{.*\} 1\.0\b", served.request("/metrics")[2].decode()))


def test_prometheus_reads_how_nodes_are_and_which_devices_are_slow(state_server: StateServer, served: Served) -> None:
    journal = Journal(None)
    journal.write(Verdict("node1", "0", 1.5, "slow", Evidence("node1", "0", WrongResults("slow"))))
    with state_server.endpoint.connect() as client:
        journal.publish(client, state_server.endpoint)

    def line(name: str) -> str:
        lines = served.request("/metrics")[2].decode().splitlines()
        return next((each for each in lines if each.startswith(name)), "")

    wait_until(lambda: line('laggard_node_up{hostname="node1"}') == 'laggard_node_up{hostname="node1"} 1.0')
    assert line('laggard_node_lag_seconds{hostname="node1"}')
    assert line('laggard_node_clock_skew_seconds{hostname="node1"}')
    assert line('laggard_node_samples_dropped_total{hostname="node1"}').endswith(" 0.0")
    wait_until(lambda: line("laggard_launch") == "laggard_launch 0.0")
    slow_s = float(line('laggard_device_slow_timestamp_seconds{gpu="0",hostname="node1"}').split()[-1])
    assert abs(time.time() - slow_s) < 600
    assert not line("laggard_progress")
