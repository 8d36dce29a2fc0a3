"""Dumps served again after their job is gone, and opened by others."""

from __future__ import annotations

import csv
import gzip
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.system.ports import free_port
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.events import Event, series_of_events
from laggard.telemetry.store.history import Summarized
from laggard.telemetry.store.summaries import merged, of_samples
from tests.queries import sub_query

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
T0 = 1_700_000_000


def dump(directory: Path, host: str, first_s: int, count: int) -> Path:
    times_us = (T0 + first_s + np.arange(count, dtype=np.int64)) * 1_000_000
    values = np.arange(first_s, first_s + count, dtype=np.float64)
    series = [TimeSeries("power", {"host": host, "gpu": gpu}, times_us, values) for gpu in ("0", "1")]
    events = series_of_events([Event((T0 + 5) * 1_000_000, "xid", "XID 79", host, "0")])
    return write_dump(str(directory), host, float(T0 + first_s + count), [*series, *events])


@contextmanager
def served(*command: str | Path) -> Iterator[int]:
    server = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        while not (line := server.stdout.readline()).startswith("telemetry at"):
            assert line, "the server has ended"
        yield int(line.rsplit(":", 1)[1])
    finally:
        server.stdin.close()
        assert server.wait(DEADLINE_S) == 0
        server.stdout.close()


def get(port: int, path: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())


def query(port: int, line: str, start: object, end: object = None) -> tuple[Any, Message]:
    """Return the answer to a query, and its headers."""
    body = json.dumps({"start": start, "end": end, "queries": [sub_query(line)]}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/query", body, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read()), answer.headers


def test_dumps_of_several_nodes_and_times_are_served_as_one(tmp_path: Path) -> None:
    for host in ("node1", "node2"):
        dump(tmp_path, host, 0, 100)
        dump(tmp_path, host, 50, 100)  # overlaps: what both hold counts once

    with served("-m", "laggard.telemetry.server", "--port", "0", "--dump", tmp_path) as port:
        (element,), _ = query(port, "sum:10s-count:power", T0, T0 + 200)
        names = get(port, "/api/suggest?type=metrics&q=p")
        events, _ = query(port, "none:laggard.events", T0)
        health = get(port, "/health")

    assert set(element["dps"].values()) == {40.0}
    assert len(element["dps"]) == 15
    assert element["aggregateTags"] == ["gpu", "host"]
    assert names == ["power"]
    assert [event["tags"]["host"] for event in events] == ["node1", "node2"]
    assert health["samples"] == 4 * 150 + 2


def test_an_answer_that_is_only_approximate_says_so(tmp_path: Path) -> None:
    minutes_us = (T0 // 60 * 60 + 60 * np.arange(10, dtype=np.int64)) * 1_000_000
    series = np.zeros(600, dtype=np.int64)
    rows = merged(of_samples(series, np.repeat(minutes_us, 60), np.tile(np.arange(60.0), 10)), 60_000_000)
    write_dump(str(tmp_path), "lost", T0 + 900.0, [Summarized(60_000_000, key_of("power", {"host": "node1"}), rows)])

    with served("-m", "laggard.telemetry.server", "--port", "0", "--dump", tmp_path) as port:
        said = {}
        for function in ("max", "p95"):
            (element,), headers = query(port, f"none:2m-{function}:power", T0 // 60 * 60, T0 // 60 * 60 + 599)
            said[function] = headers["X-Laggard-Approximate"], set(element["dps"].values())
        first, last = T0 // 60 * 60_000, (T0 // 60 * 60 + 600) * 1000
        asked = json.dumps([f"metric=power&start={first}&end={last}&points=600"]).encode()
        (curve,) = get(port, "/page/curves", asked)

    assert said == {"max": (None, {59.0}), "p95": ("0: averages of 60 s", {29.5})}
    assert (curve["averages_s"], curve["middle"]) == (60, [29.5] * 10)


def test_ctrl_c_ends_a_replay_silently(tmp_path: Path) -> None:
    dump(tmp_path, "node1", 0, 10)
    server = subprocess.Popen(
        [sys.executable, "-m", "laggard", "replay", "--port", str(free_port("127.0.0.1")), tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    with server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            while not server.stdout.readline().startswith("ssh command: "):
                assert server.poll() is None
            server.send_signal(signal.SIGINT)
            assert server.wait(DEADLINE_S) == 130
            assert server.stderr.read().strip() == ""
        finally:
            server.kill()


def test_a_dump_is_plain_csv(tmp_path: Path) -> None:
    path = dump(tmp_path, "node1", 0, 3)

    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))

    assert rows[1] == {
        "time_s": f"{T0 + 1}.000000",
        "metric": "power",
        "value": "1.0",
        "host": "node1",
        "gpu": "0",
        "tags": "host=node1&gpu=0",
        **dict.fromkeys(("interval_s", "count", "sum", "min", "max", "last", "last_s"), ""),
    }


def test_pandas_opens_a_dump_in_one_line(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")

    table = pandas.read_csv(dump(tmp_path, "node1", 0, 3))

    assert table[table.metric == "power"].groupby("gpu").value.mean().to_dict() == {0.0: 1.0, 1.0: 1.0}


def test_duckdb_opens_any_number_of_dumps_in_one_line(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    for host in ("node1", "node2"):
        dump(tmp_path, host, 0, 3)

    query = f"SELECT host, max(value) FROM '{tmp_path}/*.csv.gz' WHERE metric = 'power' GROUP BY host ORDER BY host"  # noqa: S608
    found = duckdb.sql(query).fetchall()

    assert found == [("node1", 2.0), ("node2", 2.0)]


def test_a_dump_of_many_samples_is_read_whole(tmp_path: Path) -> None:
    assert read_dump([dump(tmp_path, "node1", 0, 20_000)]).samples.size().samples == 40_001
