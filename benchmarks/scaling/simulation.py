"""A job with many nodes, seen from its primary: it receives and judges readings, and acts on a verdict.

The state server, the connections to it, the watcher with its analysis, and the controller's reader, policy and records
are real. The nodes are a crowd of processes that send generated readings (:mod:`benchmarks.scaling.crowd`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import psutil

from benchmarks.scaling.crowd import METRIC, CrowdPlan, host_name
from laggard.collectors.device import DeviceId
from laggard.detectors.judging.rounds import Round
from laggard.detectors.judging.watcher import Watcher
from laggard.detectors.notices import Notice
from laggard.detectors.slow_gpu import SlowGPUDetector
from laggard.detectors.verdict import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.kvstore.control import LaunchRecord, NodeRecord
from laggard.kvstore.server.process import StateServer
from laggard.records import plain
from laggard.resilience.controller.records import Records, RequestReader
from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import JobStatus, NodesAccused, Relaunch, Settings
from laggard.resilience.decision.policy import decide

__all__ = ["Scale", "Seen", "simulate"]

CROWDS = 4
STOP_DEADLINE_S = 30.0
LEAD_S = 5.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Size and length of a simulated job."""

    hosts: int
    devices: int
    interval_s: float
    rounds: int
    slow_round: int

    @property
    def slow_host(self) -> int:
        """Number of the slow host: the one in the middle."""
        return self.hosts // 2


@dataclass(slots=True)
class Seen:
    """What was measured.

    Attributes
    ----------
    sent, stored, refused
        Numbers of samples.
    judged
        For each round: when it was judged (Unix time), devices in it, seconds to judge it.
    start_s, begun_s
        Unix times at which the first round was due and the first slow sample was sent.
    accused_s, decided_s
        When the verdict reached the controller, and how long the decision took.
    record_s, record_mb
        Time to fence the old launch and write the next one's record, and the size of that record.
    watcher_cpu_s, server_cpu_s
        CPU time per round, not counting the first one.
    watcher_mb, server_mb, file_mb_s, window_mb
        Memory of this process and of the server, growth of the append-only file, size of the samples in the server.
    behind_s
        Largest delay of a round's last sample.
    """

    sent: int = 0
    stored: int = 0
    refused: int = 0
    judged: list[tuple[float, int, float]] = field(default_factory=list)
    start_s: float = 0.0
    begun_s: float = 0.0
    accused_s: float = 0.0
    decided_s: float = 0.0
    accused: list[str] = field(default_factory=list)
    record_s: float = 0.0
    record_mb: float = 0.0
    watcher_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    watcher_mb: float = 0.0
    server_mb: float = 0.0
    file_mb_s: float = 0.0
    window_mb: float = 0.0
    behind_s: float = 0.0

    def lag_s(self, interval_s: float, jitter: float) -> float:
        """Return the median time from the end of a round to its judgement."""
        ends_s = [self.start_s + (number + jitter) * interval_s for number in range(len(self.judged))]
        return median(at_s - end_s for (at_s, _, _), end_s in zip(self.judged, ends_s, strict=True))


class _Judge:
    """The real detector's judge, timed."""

    def __init__(self, interval_s: float, seen: Seen) -> None:
        self._detector = SlowGPUDetector(interval_s, restart_cost=0)
        self._seen = seen

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        self._detector.note_device(device, tags)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        begun_s = time.perf_counter()
        verdicts = self._detector.judge(readings, now_s)
        self._seen.judged.append((time.time(), len(readings), time.perf_counter() - begun_s))
        return verdicts

    def take_notices(self) -> Sequence[Notice]:
        return self._detector.take_notices()


def simulate(scale: Scale) -> Seen:
    """Run one job of this size and return the measurements."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, StateServer.start(Path(folder) / "state", job="scale") as server:
        endpoint_file = Path(folder) / "endpoint.json"
        server.endpoint.save(endpoint_file)
        os.environ.update({ENDPOINT_FILE: str(endpoint_file), LAUNCH: "0", NODE: host_name(0)})
        current_session.cache_clear()
        records = Records(server.endpoint)
        records.next_launch()
        nodes = tuple(_node(number, scale.devices) for number in range(scale.hosts))
        records.write_launch(LaunchRecord(0, nodes[:-1], nodes[-1:]))
        with _crowds(scale, str(endpoint_file), seen) as crowds:
            _follow(scale, server, records, nodes, seen)
            for record in _ended(crowds):
                seen.sent += record["sent"]
                seen.refused += record["refused"]
                seen.begun_s = max(seen.begun_s, record["slow_s"])
                seen.behind_s = max(seen.behind_s, *record["behind_s"])
    return seen


def _node(number: int, devices: int) -> NodeRecord:
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return NodeRecord(host_name(number), address, tuple(str(gpu) for gpu in range(devices)))


@contextlib.contextmanager
def _crowds(scale: Scale, endpoint_file: str, seen: Seen) -> Iterator[list[subprocess.Popen[str]]]:
    crowds: list[subprocess.Popen[str]] = []
    try:
        for number in range(CROWDS):
            first, end = (scale.hosts * part // CROWDS for part in (number, number + 1))
            plan = CrowdPlan(
                endpoint_file,
                first,
                end - first,
                scale.devices,
                scale.interval_s,
                scale.slow_host,
                scale.slow_round,
            )
            command = [sys.executable, "-m", "benchmarks.scaling.crowd"]
            crowds.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            pipe = cast("IO[str]", crowds[-1].stdin)
            pipe.write(json.dumps(asdict(plan)) + "\n")
            pipe.flush()
        for crowd in crowds:
            if cast("IO[str]", crowd.stdout).readline() != "ready\n":
                raise RuntimeError("a crowd did not start: its error message is above")
        seen.start_s = time.time() + LEAD_S
        for crowd in crowds:
            pipe = cast("IO[str]", crowd.stdin)
            pipe.write(f"{seen.start_s}\n")
            pipe.flush()
        yield crowds
    finally:
        for crowd in crowds:
            crowd.kill()
            crowd.wait()


def _ended(crowds: Sequence[subprocess.Popen[str]]) -> Iterator[dict[str, Any]]:
    for crowd in crowds:
        record, _ = crowd.communicate(timeout=STOP_DEADLINE_S)
        yield json.loads(record)


def _follow(scale: Scale, server: StateServer, records: Records, nodes: Sequence[NodeRecord], seen: Seen) -> None:
    """Act as the primary: run the program's watcher and the controller."""
    changed = threading.Condition()
    reader = RequestReader(server.endpoint, changed, records.last_request_id())
    hosts = [node.hostname for node in nodes]
    settings = Settings(len(hosts) - 1, resilient=True)
    status = begin(settings, hosts, [], seen.start_s)
    if not isinstance(status, JobStatus):
        raise TypeError(f"the policy did not start the job: {status}")
    watcher = Watcher(METRIC, scale.interval_s, _Judge(scale.interval_s, seen))
    own, its = psutil.Process(), psutil.Process(server.pid)
    at_first: tuple[float, float, float] | None = None
    file_bytes = written_bytes = 0
    end_s = seen.start_s + scale.rounds * scale.interval_s
    while time.time() < end_s:
        with changed:
            changed.wait_for(lambda: bool(reader.waiting), 1.0)
        before_bytes, file_bytes = file_bytes, _file_bytes(server)
        written_bytes += max(0, file_bytes - before_bytes)  # smaller: it was rewritten
        if at_first is None and seen.judged:
            at_first = time.time(), _cpu_s(own), _cpu_s(its)
        while reader.waiting:
            request = reader.waiting.popleft()
            if request.kind != "verdicts":
                continue
            verdicts = [Verdict.of_fields(fields) for fields in request.body]
            accused = frozenset(verdict.host for verdict in verdicts if verdict.action == "restart")
            if not accused:
                continue
            begun_s = time.perf_counter()
            decision = decide(settings, status, NodesAccused(accused), now_s=time.time(), progressed=True)
            seen.decided_s = time.perf_counter() - begun_s
            if not isinstance(decision, Relaunch):
                raise TypeError(f"the policy did not relaunch: {decision}")
            seen.accused_s = seen.accused_s or time.time()
            seen.accused += sorted(accused)
    if at_first is not None:
        rounds = (time.time() - at_first[0]) / scale.interval_s
        seen.watcher_cpu_s = (_cpu_s(own) - at_first[1]) / rounds
        seen.server_cpu_s = (_cpu_s(its) - at_first[2]) / rounds
    seen.file_mb_s = written_bytes / (time.time() - seen.start_s) / 1e6
    seen.watcher_mb, seen.server_mb = own.memory_info().rss / 1e6, its.memory_info().rss / 1e6
    watcher.stop()
    reader.stop()
    with server.endpoint.connect() as client:
        key = server.endpoint.key("series", METRIC)
        seen.window_mb = cast("int", client.memory_usage(key)) / 1e6
        seen.stored = cast("Any", client.xinfo_stream(key))["entries-added"]
    begun_s = time.perf_counter()
    record = LaunchRecord(records.next_launch(), tuple(nodes[:-1]), tuple(nodes[-1:]))
    records.write_launch(record)
    seen.record_s, seen.record_mb = time.perf_counter() - begun_s, len(json.dumps(plain(record))) / 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _file_bytes(server: StateServer) -> int:
    return sum(path.stat().st_size for path in server.directory.rglob("*.aof"))
