"""A job that never ran: its record as laggard keeps it, of any size, for tests of views and reports."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.resilience.folders import PREFIX
from laggard.resilience.record.journal import JOURNAL_FILE, Journal
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAnswerer
from laggard.telemetry.nodes.sources import answer_question
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.store.history import History
from laggard.telemetry.store.rollups import Run
from laggard.telemetry.store.tiers import Tiers

T0 = 1_700_000_000.0
LENGTH_S = 600
SLOW_FROM_S = 200
RELAUNCHED_S = 300
AHEAD_S = 200


def write_record(folder: Path, n_nodes: int = 3, n_gpus: int = 2, *, samples: bool = True, ended: bool = True) -> Path:
    """Write the record of a job whose node2 turns slow and is excluded; the last node replaces it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in entries(n_nodes, n_gpus, ended=ended))
    (folder / JOURNAL_FILE).write_text(text)
    if samples:
        write_dump(str(folder), "samples", T0 + LENGTH_S, series(n_nodes, n_gpus))
    return folder


def entries(n_nodes: int = 3, n_gpus: int = 2, *, name: str = "train", ended: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the entries of its journal."""
    hosts = [f"node{number + 1}" for number in range(n_nodes)]
    gpus = [str(gpu) for gpu in range(n_gpus)]
    nodes = [{"hostname": host, "address": "127.9.9.1", "devices": gpus} for host in hosts]
    command = ["python3", "train.py", "--name", "<b>bold & brave</b>"]
    job = {"name": name, "id": "abc_1234", "command": command, "pid": 1, "machine": "login1", "level": 3}
    yield {"time_s": T0, "event": "job", "format": 1, **job, "port": 4242, "folder": None, "nodes": nodes}
    first = {"launch": 0, "nodes": hosts[:-1], "reserve": hosts[-1:], "gap": None}
    yield {"time_s": T0 + 5, "event": "launch", **first}
    evidence = "node2 gpu 0: 35 % slower than its peers"
    verdict = {"host": "node2", "gpu": "0", "slowdown": 1.5, "severity": "slow", "evidence": evidence}
    yield {"time_s": T0 + 299, "event": "verdict", **verdict, "cause": "thermal throttling", "action": "restart"}
    yield {"time_s": T0 + 299, "event": "told", "what": "verdict", "text": f"{evidence} (slow)"}
    yield {"time_s": T0 + RELAUNCHED_S, "event": "launch-end", "launch": 0, "why": "without node2"}
    gap = {"stop_s": 5.0, "fence_s": 1.0, "nodes_s": 4.0}
    second = {"launch": 1, "nodes": [host for host in hosts if host != "node2"], "reserve": [], "gap": gap}
    yield {"time_s": T0 + RELAUNCHED_S + 10, "event": "launch", **second}
    if ended:
        yield {"time_s": T0 + LENGTH_S, "event": "launch-end", "launch": 1, "why": "it ended with exit code 0"}
        yield {"time_s": T0 + LENGTH_S, "event": "end", "exit_code": 0, "excluded": ["node2"]}


def series(n_nodes: int = 3, n_gpus: int = 2) -> Iterator[TimeSeries]:
    """Yield the devices' probe times and utilisation: about two samples for each time bin of a record."""
    generator = np.random.default_rng(1)
    times_s = np.arange(5, LENGTH_S, 3.0)
    times_us = np.round((T0 + times_s) * 1e6).astype(np.int64)
    for node in range(n_nodes):
        for gpu in range(n_gpus):
            tags = {"host": f"node{node + 1}", "gpu": str(gpu)}
            seconds = 0.01 * (1 + 0.01 * generator.standard_normal(len(times_s)))
            seconds[times_s >= SLOW_FROM_S] *= 1.5 if (node, gpu) == (1, 0) else 1.0
            used = (times_s < RELAUNCHED_S) if node == 1 else (times_s > RELAUNCHED_S) if node == n_nodes - 1 else True
            there = np.broadcast_to(used, times_s.shape)
            yield TimeSeries("gpu-probe-time", tags | {"model": "H100"}, times_us[there], seconds[there])
            busy = np.where(there, 95 + generator.standard_normal(len(times_s)), 0.0)
            yield TimeSeries("DeviceUtilization", tags, times_us, busy)


@contextmanager
def running_job(
    root: Path, n_nodes: int = 3, n_gpus: int = 2, *, name: str = "train", job_id: str = "abc_1234"
) -> Iterator[StateServer]:
    """Imitate a running job by a state server with a journal, and one node that answers for all."""
    folder = root / f"{PREFIX}{job_id}"
    folder.mkdir(mode=0o700)
    node = folder / "node1"
    node.mkdir()
    with StateServer.start(folder / "state", job=name) as server, server.endpoint.connect() as client:
        server.endpoint.save(node / "endpoint.json")
        journal = Journal(None)
        for fields in entries(n_nodes, n_gpus, name=name, ended=False):
            time_s, event = fields.pop("time_s"), fields.pop("event")
            journal.write(event, **(fields | {"id": job_id} if time_s == T0 else fields))
        journal.publish(client, server.endpoint)
        begin_launch(client, server.endpoint, 1)
        # Its newest samples lie in the future, so that they never go out of date.
        last_us = round((time.time() + AHEAD_S) * 1e6)
        tiers = Tiers(TelemetrySettings().tier_windows_s, max_bytes=1 << 30, clock=time.time)
        store = SampleStore(LENGTH_S, clock=time.time, observe=tiers.add)
        samples = []
        for each in series(n_nodes, n_gpus):
            if each.metric == "DeviceUtilization":
                times_us = each.times_us - each.times_us[-1] + last_us
                store.extend(key_of(each.metric, each.tags), times_us, each.values)
            else:
                seconds = tuple(each.values[-2:].tolist())
                samples.append(Sample(each.metric, time.time(), seconds, dict(each.tags)))
        store.extend(key_of("loss", {"host": "node1"}), times_us, np.full(len(times_us), 1.5))
        Series(client, server.endpoint, 1).add(samples)
        history, run = History(tiers, store), Run.new("node1", round(time.time() * 1e6))
        with NodeAnswerer(client, server.endpoint, "node1", lambda question: answer_question(history, run, question)):
            yield server
    shutil.rmtree(folder)
