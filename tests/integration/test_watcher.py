"""The watcher and what the detector remembers, with a real state server."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors import CollectorGroup, InlineProbe
from laggard.collectors.causes import Cause
from laggard.collectors.device import DeviceId, VirtualDevice
from laggard.collectors.errors import DeviceError
from laggard.collectors.group import ERROR
from laggard.detectors import Detector, SlowGPUDetector, Verdict
from laggard.detectors.detector import Window
from laggard.detectors.evidence import Accused
from laggard.detectors.judging import watcher as watching
from laggard.detectors.judging.device_readings import HISTORY_KEY
from laggard.detectors.judging.launch_signs import LaunchSigns
from laggard.detectors.judging.rounds import Round, RoundAssembler
from laggard.detectors.judging.sources import Found, StreamSource
from laggard.detectors.judging.watcher import Watcher
from laggard.detectors.notices import Blind, Notice
from laggard.detectors.verdict import Evidence
from laggard.kvstore import control
from laggard.kvstore.client.connection import Endpoint, current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord, PhaseRecord, Signs
from laggard.kvstore.series import streams
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.job import Job, _phases, _reporter
from tests.waiting import wait_until

DEADLINE_S = 20.0
INTERVAL_S = 0.2
HOSTS = ("node1", "node2", "node3", "node4")


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateServer]:
    """Make this process one of a launch on one device of one node."""
    with StateServer.start(tmp_path / "state", job="watcher") as server:
        server.endpoint.save(tmp_path / "endpoint.json")
        for name, value in ((ENDPOINT_FILE, str(tmp_path / "endpoint.json")), (LAUNCH, "0"), (NODE, "node1")):
            monkeypatch.setenv(name, value)
        current_session.cache_clear()
        with server.endpoint.connect() as client:
            begin_launch(client, server.endpoint, 0)
            node = NodeRecord("node1", "127.0.0.1", ("0",))
            Control(client, server.endpoint, 0).write_launch(LaunchRecord(0, (node,), ()))
        with current_session().client:
            yield server
    current_session.cache_clear()


@pytest.fixture
def series(launch: StateServer) -> Iterator[Series]:
    """Return what a collector writes to."""
    with launch.endpoint.connect() as client:
        yield Series(client, launch.endpoint, 0)


def of_node(launch: StateServer, host: str) -> Series:
    """Return what a collector of some node writes to."""
    return Series(current_session().client, launch.endpoint, 0, host)


@pytest.fixture
def state(launch: StateServer) -> Iterator[State]:
    with launch.endpoint.connect() as client:
        yield State(client, launch.endpoint, 0)


class Listener:
    """Records its rounds, and fails to judge the one with 666 in it."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.notices: list[Notice] = []
        self.tags: dict[DeviceId, Mapping[str, str]] = {}

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        self.tags[device] = tags

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        del now_s
        self.rounds.append(readings)
        if readings["node1", "0"] == [666.0]:
            raise ZeroDivisionError("oops")
        return [Verdict("node1", "0", 1.5, "slow", Evidence("node1", "0", Accused("made up", ())))]

    def take_notices(self) -> list[Notice]:
        new, self.notices = self.notices, []
        return new


def requests(endpoint: Endpoint) -> list[tuple[str, Any]]:
    with endpoint.connect() as client:
        control = Control(client, endpoint, 0)
        return [(request.kind, request.body[0]) for _, request in control.requests("0-0", 0.01)]


def test_a_watcher_goes_on_after_a_restart_of_the_state_server(
    launch: StateServer,
    series: Series,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, "laggard.detectors")
    for module in (streams, control):
        monkeypatch.setattr(module, "RETRY_FOR_S", 0.1)  # so that each attempt fails soon
    attempts: list[float] = []

    class Counted(StreamSource):
        def read(self) -> Iterator[Found]:
            attempts.append(time.monotonic())
            return super().read()

    listener = Listener()
    watcher = Watcher("probe", INTERVAL_S, listener, source=Counted(current_session(), "probe"))
    tags = {"host": "node1", "gpu": "0", "uuid": "GPU-1"}
    endpoint = launch.endpoint
    try:
        series.add([Sample("probe", time.time(), (1.0,), tags)])
        wait_until(lambda: len(requests(launch.endpoint)) == 1)
        assert listener.tags == {("node1", "0"): tags}
        launch.stop()
        wait_until(lambda: "is waiting for the state server" in caplog.text)
        failed = len(attempts)
        wait_until(lambda: len(attempts) >= failed + 3)  # which log nothing
        with StateServer.start(tmp_path / "state", job="watcher", port=endpoint.port):
            series.add([Sample("probe", time.time(), (2.0,), tags)])
            wait_until(lambda: listener.rounds[-1] == {("node1", "0"): [2.0]})
            wait_until(lambda: [kind for kind, _ in requests(endpoint)].count("verdicts") == 2)
            assert caplog.text.count("is waiting for the state server") == 1
            watcher.stop()
    finally:
        watcher.stop()


def test_what_else_the_rounds_show_is_sent_as_notices_with_the_metrics_name(
    launch: StateServer, series: Series
) -> None:
    listener = Listener()
    listener.notices.append(Blind("all 16 devices"))
    watcher = Watcher("probe", INTERVAL_S, listener)
    try:
        series.add([Sample("probe", time.time(), (1.0,), {"host": "node1", "gpu": "0"})])
        wait_until(lambda: ("notices", "probe: no reading so far: all 16 devices") in requests(launch.endpoint))
    finally:
        watcher.stop()


def test_an_analysis_that_fails_is_reported_and_the_next_round_is_judged(launch: StateServer, series: Series) -> None:
    listener = Listener()
    watcher = Watcher("probe", INTERVAL_S, listener)
    try:
        for number, value in enumerate((666.0, 1.0), 1):
            series.add([Sample("probe", time.time(), (value,), {"host": "node1", "gpu": "0"})])
            wait_until(lambda: len(listener.rounds) == number)  # noqa: B023 - called at once
        wait_until(lambda: len(requests(launch.endpoint)) >= 2)
    finally:
        watcher.stop()
    sent = requests(launch.endpoint)
    assert sent[0] == ("notices", "probe: a round could not be judged: ZeroDivisionError: oops")
    assert sent[1][0] == "verdicts"


def test_devices_without_a_good_reading_are_reported_with_the_reason(launch: StateServer, series: Series) -> None:
    """The reason is the test's own error, or why its node has no collector."""
    nodes = tuple(NodeRecord(host, "127.0.0.1", ("0",)) for host in HOSTS)
    with launch.endpoint.connect() as client:
        Control(client, launch.endpoint, 0).write_launch(LaunchRecord(0, nodes, ()))
    at_once = functools.partial(RoundAssembler, start_allowance_s=0, shortest_silence_s=0)
    failures = {"node3": "ImportError: no module named 'numba'"}
    watcher = Watcher("probe", INTERVAL_S, Listener(), failure_on=lambda host: failures.get(host, ""), rounds=at_once)
    try:

        def notices() -> list[str]:
            tags = {"host": "node1", "gpu": "0"}
            series.add([Sample("probe", time.time(), (1.0,), tags)])
            broken = Sample("probe", time.time(), (math.nan,), {**tags, "host": "node2", ERROR: "OSError: lost"})
            of_node(launch, "node2").add([broken])
            with launch.endpoint.connect() as client:
                asked = Control(client, launch.endpoint, 0).requests("0-0", 0.01)
                return sorted(text for _, request in asked if request.kind == "notices" for text in request.body)

        wait_until(lambda: len(notices()) >= 3)
        assert notices() == [
            "probe: no good reading from node2 gpu 0 for three rounds: OSError: lost",
            "probe: no good reading from node3 gpu 0 for three rounds: ImportError: no module named 'numba'",
            "probe: no good reading from node4 gpu 0 for three rounds",
        ]
        of_node(launch, "node4").add([Sample("probe", time.time(), (1.0,), {"host": "node4", "gpu": "0"})])
        wait_until(lambda: any("node4 gpu 0 gives readings again" in each for each in notices()))
    finally:
        watcher.stop()


def test_a_read_that_the_state_server_holds_up_makes_no_device_silent(launch: StateServer) -> None:
    """Its reply holds the sample of one node; that of the other, written meanwhile, is in the next one."""
    with launch.endpoint.connect() as client:
        nodes = tuple(NodeRecord(host, "127.0.0.1", ("0",)) for host in HOSTS[:2])
        Control(client, launch.endpoint, 0).write_launch(LaunchRecord(0, nodes, ()))
    impatient = functools.partial(RoundAssembler, shortest_silence_s=0)
    times_s = [100.0]

    class HeldUp(StreamSource):
        """Reading takes as long as this."""

        takes_s = 0.0

        def read(self) -> Iterator[Found]:
            found = list(super().read())
            times_s.append(times_s[-1] + self.takes_s)
            yield from found

    listener, source = Listener(), HeldUp(current_session(), "probe")
    watcher = Watcher("probe", INTERVAL_S, listener, source=source, rounds=impatient, clock=lambda: times_s[-1])
    watcher.stop()  # the test looks itself

    def look_after_readings_of(*hosts: str) -> None:
        for host in hosts:
            of_node(launch, host).add([Sample("probe", time.time(), (1.0,), {"host": host, "gpu": "0"})])
        times_s.append(times_s[-1] + INTERVAL_S)
        watcher._process_samples()

    for _ in range(100):  # longer than the time that collectors have to start
        look_after_readings_of("node1", "node2")
    source.takes_s = 10 * INTERVAL_S
    look_after_readings_of("node2")
    source.takes_s = 0.0
    look_after_readings_of("node1", "node2")

    assert len(listener.rounds) == 101
    assert {kind for kind, _ in watcher._requests} == {"verdicts"}


class Unfed(Detector):
    """Watches what nobody feeds."""

    metric_name = "batch-seconds"

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        raise AssertionError((data, analysis_args))


def test_a_detector_that_is_fed_nothing_says_so_and_what_to_do(
    launch: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FIRST_READING_S", 0.0)
    with Unfed(collection_rate=0.05):
        wait_until(lambda: requests(launch.endpoint))
    advice = "at telemetry level 0 add_data keeps nothing, add --telemetry-level=1"
    assert requests(launch.endpoint) == [("notices", f"batch-seconds: no reading so far: {advice}")]


def play(detector: SlowGPUDetector, uuids: Mapping[str, str], slow: str, rounds: int = 12) -> list[tuple[str, str]]:
    """Let a detector judge rounds in which one host is 30 % slower; return the accused and their actions."""
    for host, uuid in uuids.items():
        detector.note_device((host, "0"), {"model": "V100", "uuid": uuid})
    found = []
    for number in range(rounds):
        readings: Round = {
            (host, "0"): [0.01 * (1.3 if host == slow else 1.0) * (1 + 1e-3 * ((number + place) % 3))]
            for place, host in enumerate(uuids)
        }
        found += detector.judge(readings, 10.0 * number)
    return [(verdict.host, verdict.action) for verdict in found]


def detector_of_run(run: str, state: State) -> SlowGPUDetector:
    detector = SlowGPUDetector(state=state, restart_cost=0)
    detector._judge.begin(LaunchRecord(0, (), (), excluded=("node9",)), run)
    return detector


def test_a_devices_history_is_found_by_uuid_in_the_next_launch_and_the_next_job(state: State) -> None:
    uuids = {host: f"GPU-{number}" for number, host in enumerate(HOSTS)}
    first = detector_of_run("a", state)
    assert play(first, uuids, "") == []
    assert play(first, uuids, "node4") == [("node4", "restart")]
    first.stop()

    relaunched = detector_of_run("a", state)
    assert play(relaunched, uuids, "node4") == []  # this run has said so already
    relaunched.stop()

    moved = dict(zip(reversed(HOSTS), uuids.values(), strict=True))  # each device in another host
    other_job = detector_of_run("b", state)
    assert play(other_job, moved, "node1") == [("node1", "restart")]  # slower than its own past, elsewhere
    assert other_job._readings.compared.to_state()["identities"] == [""] * 4
    assert "GPU-3" in state["laggard/slow-gpu-history"]["analysis"]["identities"]


def test_an_incident_goes_on_in_the_next_launch_and_begins_anew_in_the_next_job(state: State) -> None:
    uuids = {host: f"GPU-{number}" for number, host in enumerate(HOSTS)}
    nodes = tuple(NodeRecord(host, "", ("0",)) for host in HOSTS)

    def detector(run: str) -> SlowGPUDetector:
        found = SlowGPUDetector(state=state, restart_cost=120)
        found._judge.begin(LaunchRecord(0, nodes, nodes[:1]), run)
        return found

    first = detector("a")
    assert play(first, uuids, "") == []
    assert play(first, uuids, "node4", rounds=12) == [("node4", "report")]
    first.stop()
    relaunched = detector("a")
    assert play(relaunched, uuids, "node4", rounds=12) == [("node4", "restart")]  # 40 s lost, in both together
    relaunched.stop()
    assert play(detector("b"), uuids, "node4", rounds=12) == [("node4", "report")]


def test_what_was_learned_is_kept_even_if_the_launch_is_killed(state: State) -> None:
    uuids = {host: f"GPU-{number}" for number, host in enumerate(HOSTS)}
    assert play(detector_of_run("a", state), uuids, "", rounds=9) == []  # and is killed: stop is never called
    written = state._layout.record(HISTORY_KEY)
    next_job = detector_of_run("b", state)
    assert play(next_job, uuids, "", rounds=9) == []
    assert next_job._readings.compared.learned == 4
    assert state._layout.record(HISTORY_KEY) == written  # nothing new was learned
    assert state.commits() == 0  # nor is what detectors keep a sign of life of the program


def test_an_unreadable_history_is_replaced_by_a_new_one(state: State, caplog: pytest.LogCaptureFixture) -> None:
    state["laggard/slow-gpu-history"] = {"run": "a", "analysis": {"version": 1}}
    uuids = dict.fromkeys(HOSTS, "")
    assert play(detector_of_run("a", state), uuids, "node4") == [("node4", "restart")]
    assert "starts afresh: state has version 1" in caplog.text
    written = SlowGPUDetector(state=state)._judge
    written._has_read = True
    written.keep()
    kept: Any = state["laggard/slow-gpu-history"]
    state["laggard/slow-gpu-history"] = kept | {"restarts": {"version": 7}}
    assert play(detector_of_run("a", state), uuids, "node4") == [("node4", "restart")]
    assert "starts afresh: state has version 7, this program reads version 5" in caplog.text


def test_what_the_program_declares_and_commits_reaches_the_detector(launch: StateServer, state: State) -> None:
    for cached in (_phases, _reporter):
        cached.cache_clear()
    job, signs = Job.current(), LaunchSigns(current_session())
    before = signs.read()
    assert before == Signs(0)
    with job.phase("checkpoint"), job.phase("upload"):
        state["step"] = 1
        job.progress(2)
        job.checkpointed(1)
        assert list(signs.read().phases.values()) == [PhaseRecord("node1", "upload", 2, running=True)]  # type: ignore[union-attr]
    after = signs.read()
    assert after is not None
    assert (after.commits, after.step, after.checkpointed) == (1, 2.0, 1.0)
    assert list(after.phases.values()) == [PhaseRecord("node1", "upload", 2, running=False)]
    with pytest.raises(ZeroDivisionError), job.phase("evaluation"):
        raise ZeroDivisionError
    [phase] = signs.read().phases.values()  # type: ignore[union-attr]
    assert (phase.name, phase.running) == ("evaluation", False)
    assert after.n_reserve is None
    Control(current_session().client, launch.endpoint, 0).tell_reserve(3)
    assert signs.read() == replace(after, n_reserve=3, phases=signs.read().phases)  # type: ignore[union-attr]
    launch.stop()
    assert signs.read() is None


@pytest.mark.usefixtures("launch")
def test_a_node_in_a_declared_phase_is_not_accused() -> None:
    _phases.cache_clear()
    uuids = {host: f"GPU-{number}" for number, host in enumerate(HOSTS)}
    detector = SlowGPUDetector(60.0, inline_probes=True, restart_cost=0)
    with detector, Job.current().phase("checkpoint"):
        assert play(detector, uuids, "node1") == []
        assert play(detector, uuids, "node3") == [("node3", "restart")]


def test_a_detector_without_devices_says_so_immediately(launch: StateServer) -> None:
    with launch.endpoint.connect() as client:
        no_devices = NodeRecord("node1", "127.0.0.1", ())
        Control(client, launch.endpoint, 0).write_launch(LaunchRecord(0, (no_devices,), ()))

    with pytest.raises(DeviceError, match=r"no node of this job has a GPU: --virtual-gpus=K makes"):
        CollectorGroup.start(SlowGPUDetector())


def test_a_device_with_wrong_results_is_accused_immediately_and_only_once() -> None:
    detector = SlowGPUDetector()
    for host in HOSTS:
        wrong = {"wrong": "wrong results of the probe gemm_fp32: 3"} if host == "node2" else {}
        detector.note_device(
            (host, "0"), {"model": "H100", "cause": Cause("memory", "2 corrected ECC errors").to_tag()} | wrong
        )
    readings: Round = {(host, "0"): [0.01] for host in HOSTS}

    [verdict] = detector.judge(readings, 0.0)

    assert (verdict.host, verdict.severity, verdict.action) == ("node2", "faulty", "restart")
    assert str(verdict.evidence) == "node2 gpu 0: wrong results of the probe gemm_fp32: 3"
    assert str(verdict.cause) == "2 corrected ECC errors"
    assert detector.judge(readings, 3.0) == []


def test_an_inline_probe_runs_when_a_round_is_due_and_a_detector_gets_its_readings(
    launch: StateServer, tmp_path: Path
) -> None:
    listener = Listener()
    watcher = Watcher("gpu-probe-time", INTERVAL_S, listener)
    inline = InlineProbe(SlowGPUDetector(INTERVAL_S), VirtualDevice("0", tmp_path, "node1"))
    try:
        wait_until(lambda: inline.probe_if_due())
        assert not inline.probe_if_due()  # its next turn is at least 0.6 intervals later
        wait_until(lambda: bool(listener.rounds))
        [seconds] = listener.rounds[0].values()
        assert len(seconds) == SlowGPUDetector.repeats
        assert min(seconds) > 0
        with launch.endpoint.connect() as client:
            begin_launch(client, launch.endpoint, 1)
        wait_until(lambda: inline.probe_if_due())  # its readings are of a launch that is over
        wait_until(lambda: inline._collector is None)
        assert not inline.probe_if_due()
    finally:
        watcher.stop()
