"""A job that never ran: its record as laggard keeps it, of any size, for tests of views and reports."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.causes import Cause
from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Evidence, Verdict
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import NodeRecord
from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.resilience.decision.events import ProgramEnded
from laggard.resilience.decision.reasons import Change
from laggard.resilience.folders import PREFIX
from laggard.resilience.record.entries import JobEnded, LaunchEnded, Told
from laggard.resilience.record.journal import JOURNAL_FILE, Entry, Journal
from laggard.telemetry.course import Gap, JobBegan, LaunchBegan
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAnswerer
from laggard.telemetry.nodes.sources import answer_question
from laggard.telemetry.store.history import History
from laggard.telemetry.store.rollups import Run
from laggard.telemetry.store.tiers import WINDOWS_S, Tiers

T0 = 1_700_000_000.0
LENGTH_S = 600
SLOW_FROM_S = 200
RELAUNCHED_S = 300
AHEAD_S = 200
OF_NODES = {"load_average": 24.0, "cpu_percent": 38.0, "used_RAM": 57.0}
RECEIVED_PER_S = 1.2e9


def write_record(folder: Path, n_nodes: int = 3, n_gpus: int = 2, *, samples: bool = True, ended: bool = True) -> Path:
    """Write the record of a job whose node2 turns slow and is excluded; the last node replaces it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{entry.to_json()}\n" for entry in entries(n_nodes, n_gpus, ended=ended))
    (folder / JOURNAL_FILE).write_text(text)
    if samples:
        write_dump(str(folder), "samples", T0 + LENGTH_S, series(n_nodes, n_gpus))
    return folder


def entries(n_nodes: int = 3, n_gpus: int = 2, *, name: str = "train", ended: bool = True) -> Iterator[Entry]:
    """Yield the entries of its journal."""
    hosts = tuple(f"node{number + 1}" for number in range(n_nodes))
    gpus = tuple(str(gpu) for gpu in range(n_gpus))
    nodes = tuple(NodeRecord(host, "127.9.9.1", gpus) for host in hosts)
    command = ("python3", "train.py", "--name", "<b>bold & brave</b>")
    yield Entry(T0, JobBegan(name, "abc_1234", command, nodes, 3, 4242, 1, "login1"))
    yield Entry(T0 + 5, LaunchBegan(0, hosts[:-1], hosts[-1:], "node1"))
    evidence = Evidence("node2", "0", Slow(1.35, "peers", 3, since_s=T0 + SLOW_FROM_S))
    yield Entry(T0 + 299, Verdict("node2", "0", 1.5, "slow", evidence, Cause("thermal throttling"), "restart"))
    yield Entry(T0 + 299, Told("verdict", f"{evidence} (slow)"))
    yield Entry(T0 + RELAUNCHED_S, LaunchEnded(0, (Change(without=("node2",)),), "exclusion"))
    rest = tuple(host for host in hosts if host != "node2")
    yield Entry(T0 + RELAUNCHED_S + 10, LaunchBegan(1, rest, (), "node1", Gap(5.0, 1.0, 4.0)))
    if ended:
        yield Entry(T0 + LENGTH_S, LaunchEnded(1, (ProgramEnded(),), "end"))
        yield Entry(T0 + LENGTH_S, JobEnded(0, ("node2",)))


def series(n_nodes: int = 3, n_gpus: int = 2, metrics: Sequence[str] = ("DeviceUtilization",)) -> Iterator[TimeSeries]:
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
            for metric in metrics:
                busy = np.where(there, 95 + generator.standard_normal(len(times_s)), 0.0)
                yield TimeSeries(metric, tags, times_us, busy)


def series_of_nodes(n_nodes: int, times_us: NDArray[np.int64]) -> Iterator[TimeSeries]:
    """Yield the load, memory and traffic of the nodes."""
    generator = np.random.default_rng(2)
    for number in range(n_nodes):
        tags = {"host": f"node{number + 1}"}
        for metric, mean in OF_NODES.items():
            yield TimeSeries(metric, tags, times_us, mean * (1 + 0.1 * generator.standard_normal(len(times_us))))
        received = RECEIVED_PER_S * (1 + 0.1 * generator.random()) * (times_us - times_us[0]) / 1e6
        yield TimeSeries("network_receive", tags, times_us, received)


@contextmanager
def running_job(
    root: Path,
    n_nodes: int = 3,
    n_gpus: int = 2,
    *,
    name: str = "train",
    job_id: str = "abc_1234",
    metrics: Sequence[str] = ("DeviceUtilization",),
    of_nodes: bool = False,
) -> Iterator[StateServer]:
    """Imitate a running job by a state server with a journal, and one node that answers for all.

    ``metrics`` are those of its devices; with ``of_nodes``, nodes have readings too.
    """
    folder = root / f"{PREFIX}{job_id}"
    folder.mkdir(mode=0o700)
    node = folder / "node1"
    node.mkdir()
    with StateServer.start(folder / "state", job=name) as server, server.endpoint.connect() as client:
        server.endpoint.save(node / "endpoint.json")
        journal = Journal(None)
        for entry in entries(n_nodes, n_gpus, name=name, ended=False):
            begun = entry.record
            journal.write(replace(begun, id=job_id) if isinstance(begun, JobBegan) else begun)
        journal.publish(client, server.endpoint)
        begin_launch(client, server.endpoint, 1)
        # Its newest samples lie in the future, so that they never go out of date.
        last_us = round((time.time() + AHEAD_S) * 1e6)
        tiers = Tiers(WINDOWS_S, max_bytes=1 << 30, clock=time.time)
        store = SampleStore(LENGTH_S, clock=time.time, observe=tiers.add)
        for each in series(n_nodes, n_gpus, metrics):
            if each.metric in metrics:
                times_us = each.times_us - each.times_us[-1] + last_us
                store.extend(key_of(each.metric, each.tags), times_us, each.values)
            else:
                seconds = tuple(each.values[-2:].tolist())
                written = Sample(each.metric, time.time(), seconds, dict(each.tags))
                Series(client, server.endpoint, 1, each.tags["host"]).add([written])
        store.extend(key_of("loss", {"host": "node1"}), times_us, np.full(len(times_us), 1.5))
        for each in series_of_nodes(n_nodes, times_us) if of_nodes else ():
            store.extend(key_of(each.metric, each.tags), each.times_us, each.values)
        history, run = History(tiers, store), Run.new("node1", round(time.time() * 1e6))
        with NodeAnswerer(client, server.endpoint, "node1", lambda question: answer_question(history, run, question)):
            yield server
    shutil.rmtree(folder)
