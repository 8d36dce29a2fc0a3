"""Nothing that is written or raised ends a watcher; what is not believed, and what failed, is told once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from laggard.collectors.causes import Cause
from laggard.collectors.device import DeviceId
from laggard.collectors.probes import WRONG
from laggard.collectors.section_sender import SECTION_TIME
from laggard.detectors import Detector, SectionDetector, SlowGPUDetector, Verdict
from laggard.detectors.detector import Window
from laggard.detectors.judging import watcher as watching
from laggard.detectors.judging.section_readings import worker_of
from laggard.detectors.notices import Blind, Notice
from laggard.kvstore.control import Control, PhaseRecord
from laggard.kvstore.series.streams import MAX_TEXT_BYTES, MAX_VALUES, Sample, Series
from tests.waiting import wait_until
from tests.watched_launch import (
    DEVICES,
    INTERVAL_S,
    SLOW,
    Looker,
    WatchedLaunch,
    entry,
    reading,
    verdicts_of_rounds,
    watched_launch,
)

FOUND = {(*SLOW, "very slow")}
OWN = {"host": "node2", "gpu": "0"}


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedLaunch]:
    with watched_launch(tmp_path_factory.mktemp("watched")) as running:
        yield running


def refused(looker: Looker) -> list[str]:
    """Let the time pass after which refusals are told; return what is told, without the metric's name."""
    looker.now_s += INTERVAL_S
    looker.look()
    return [text.removeprefix(f"{looker.metric}: ") for text in looker.launch.told()]


MALFORMED: dict[str, bytes | list[object]] = {
    "no JSON": b"hello",
    "nothing": b"",
    "not UTF-8": b"\xff\xfe",
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "a number": b"3",
    "no tags": [1.0, [1.0]],
    "a text for a value": [1.0, ["fast"], OWN],
    "a truth for a value": [1.0, [True], OWN],
    "no list of values": [1.0, 3, OWN],
    "no value": [1.0, [], OWN],
    "too many values": [1.0, [1.0] * (MAX_VALUES + 1), OWN],
    "an infinite number": b'[1.0,[1e999],{"host":"node2","gpu":"0"}]',
    "a huge integer": b"[1.0,[" + b"1" * 400 + b'],{"host":"node2","gpu":"0"}]',
    "a list of tags": [1.0, [1.0], ["host"]],
    "a tag of another type": [1.0, [1.0], {**OWN, "gpu": [1]}],
    "a lone surrogate": b'[1.0,[1.0],{"host":"node2","gpu":"0","model":"\\ud800"}]',
    "a time that cannot be": [1e20, [1.0], OWN],
    "a time before all": [-1.0, [1.0], OWN],
    "no time": [None, [1.0], OWN],
    "an enormous text": [1.0, [1.0], {**OWN, "model": "x" * MAX_TEXT_BYTES}],
    "a stride that is no number": [1.0, [1.0], {**OWN, "stride": "abc"}],
    "a stride of 0": [1.0, [1.0], {**OWN, "stride": "0"}],
    "a huge stride": [1.0, [1.0], {**OWN, "stride": "9" * 400}],
}


@pytest.mark.parametrize("sample", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_sample_is_skipped_and_told_once(launch: WatchedLaunch, sample: object) -> None:
    looker = Looker(launch, detector := SlowGPUDetector(INTERVAL_S))
    launch.told()
    looker.round([entry("node2", sample)] * 3 + [reading(device) for device in DEVICES])
    assert detector._readings.compared.devices == tuple(DEVICES)
    [told] = refused(looker)
    assert told.startswith("3 samples were refused from node2: ")
    assert told.endswith(" is malformed")
    assert len(told) < 200
    looker.round([entry("node2", sample)])
    assert refused(looker) == []


@pytest.mark.parametrize(
    "tags",
    [
        {"cause": "no JSON"},
        {"cause": '["cooling"]'},
        {"cause": "[" * 5000},
        {"utilisation": "often"},
        {"utilisation": "nan"},
        {"utilisation": "1e300"},
        {"temperature": "-1e9"},
    ],
)
def test_a_reading_counts_without_its_tags_if_these_are_malformed(launch: WatchedLaunch, tags: dict[str, str]) -> None:
    looker = Looker(launch, detector := SlowGPUDetector(INTERVAL_S))
    launch.told()
    for _ in range(2):
        looker.round([reading(device, 0.01, **tags) if device == SLOW else reading(device) for device in DEVICES])
    assert detector._readings.compared.devices == tuple(DEVICES)
    [told] = refused(looker)
    assert told.startswith("the tags of a device could not be used: ")


def test_a_process_is_believed_about_its_own_node_only(launch: WatchedLaunch) -> None:
    """What a rank of node4 says of the slow device of node1, that it is well, broken and throttled, is refused."""
    cause = Cause("cooling", "made up").to_tag()
    lies = [
        {**reading(device, 0.01, cause=cause, **{WRONG: "made up"}), b"node": b"node4"}
        for device in DEVICES
        if device[0] != "node4"
    ]
    assert verdicts_of_rounds(launch, lambda _: lies) == FOUND
    looker = Looker(launch, SlowGPUDetector(INTERVAL_S))
    launch.told()
    looker.round(lies)
    looker.round(lies)
    expected = "a process is believed about its own node only, not about 'node1'"
    assert refused(looker) == [f"12 samples were refused from node4: {expected}"]


def test_a_sample_of_a_process_that_does_not_say_where_it_runs_is_refused(launch: WatchedLaunch) -> None:
    looker = Looker(launch, SlowGPUDetector(INTERVAL_S))
    launch.told()
    looker.round([{b"sample": reading(SLOW)[b"sample"]}, {b"other": b"field"}])
    foreign, malformed = refused(looker)
    assert foreign == "1 sample was refused: a process is believed about its own node only, not about 'node1'"
    assert malformed == "1 sample was refused: '' is malformed"


def test_a_sample_says_where_its_process_runs(launch: WatchedLaunch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_NODE", "node3")
    series = Series(launch.client, launch.endpoint, 0)
    series.add([Sample("places", 1.0, (float("nan"), 2), {"host": host}) for host in ("node3", "node1")])
    (_, own), (_, foreign) = series.read("places")
    assert isinstance(own, Sample)
    assert str(own.values) == "(nan, 2.0)"
    assert not isinstance(foreign, Sample)


def test_forty_thousand_invented_names_are_not_kept_and_told_once(launch: WatchedLaunch) -> None:
    looker = Looker(launch, detector := SlowGPUDetector(INTERVAL_S))
    launch.told()
    invented = [reading(("node2", f"x{number}")) for number in range(40_000)]
    looker.round([*(reading(device) for device in DEVICES), *invented])
    assert detector._readings.compared.devices == tuple(DEVICES)
    assert len(looker.watcher._tags) == len(DEVICES)
    assert refused(looker) == ["40,000 samples were refused from node2: this launch has no 'node2 gpu x0'"]
    looker.round(invented[:1])
    assert refused(looker) == []


def test_of_names_that_a_launch_does_not_list_a_node_has_a_limited_number(
    launch: WatchedLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_NAMES", 3)
    looker = Looker(launch, Listener(), expected=(), source={"place": worker_of})
    launch.told()
    ranks = [reading(("node2", "0"), rank=str(rank)) for rank in range(6)]
    looker.round([*ranks, reading(("node9", "0"), rank="9"), reading(("node3", "0"), rank="7"), *ranks])
    assert set(looker.watcher._tags) == {("node2", f"rank {rank}") for rank in range(3)} | {("node3", "rank 7")}
    assert refused(looker)[1:] == [
        "6 samples were refused from node2: 'rank 3' is one name too many for a node",
        "1 sample was refused: this launch has no 'rank 9 on node9'",
    ]


class Unspeakable(Exception):  # noqa: N818
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise RecursionError


class Listener:
    """Records devices and rounds; its methods raise whatever a test has set for them."""

    def __init__(self, **raises: Callable[[Any], BaseException | None]) -> None:
        self.raises = raises
        self.rounds: list[dict[DeviceId, list[float]]] = []

    def _raise(self, method: str, about: object) -> None:
        if method in self.raises and (error := self.raises[method](about)) is not None:
            raise error

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        del tags
        self._raise("note_device", device)

    def judge(self, readings: dict[DeviceId, list[float]], now_s: float) -> list[Verdict]:
        del now_s
        self.rounds.append(readings)
        self._raise("judge", len(self.rounds))
        return [Verdict.of_fault(*SLOW, "wrong")]

    def take_notices(self) -> Sequence[Notice]:
        self._raise("take_notices", len(self.rounds))
        return [Blind(f"round {len(self.rounds)}")]


ERRORS = [ZeroDivisionError("oops"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Unspeakable()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(
    ("method", "when", "words"),
    [
        ("note_device", lambda device: device == SLOW, "the tags of a device could not be used"),
        ("note_device", lambda _: True, "the tags of a device could not be used"),
        ("judge", lambda number: number == 2, "a round could not be judged"),
        ("judge", lambda _: True, "a round could not be judged"),
        ("take_notices", lambda _: True, "a round could not be judged"),
    ],
)
def test_what_a_users_method_raises_is_told_once_and_the_watcher_goes_on(
    launch: WatchedLaunch, error: BaseException, method: str, when: Callable[[Any], bool], words: str
) -> None:
    listener = Listener(**{method: lambda about: error if when(about) else None})
    looker = Looker(launch, listener)
    launch.told()
    for number in range(4):
        looker.round([reading(device, number=str(number)) for device in DEVICES])
    assert [len(each) for each in listener.rounds] == [len(DEVICES)] * 4
    told = [text for text in launch.told() if words in text]
    assert len(told) == 1
    assert type(error).__name__ in told[0]


class Raising(Detector):
    """A user's detector that calls ``sys.exit`` in place of judging."""

    metric_name = "batch-seconds"

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        del data, analysis_args
        sys.exit("a mistake")


def test_the_thread_of_a_users_detector_that_exits_goes_on(launch: WatchedLaunch) -> None:
    launch.told()
    with Raising(0.05) as detector:
        for number in (1, 2, 3):
            launch.write("batch-seconds", [entry("node1", [time.time(), [1.0], {"host": "node1"}])])
            wait_until(lambda: len(detector._window.get(("node1", ""), ())) == number)  # noqa: B023 - called at once
        assert detector._watcher is not None
        assert detector._watcher._thread.is_alive()
        assert launch.told() == ["batch-seconds: a round could not be judged: SystemExit: a mistake"]


@pytest.mark.parametrize("hosts", ["node1", [3], None])
def test_hosts_that_are_no_names_are_refused(launch: WatchedLaunch, hosts: Any) -> None:
    class Mistaken(Detector):
        metric_name = "mistaken"

        def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
            del data, analysis_args
            return True, hosts

    looker = Looker(launch, Mistaken(INTERVAL_S))
    launch.told()
    looker.round([reading(device) for device in DEVICES])
    [told] = launch.told()
    assert told.startswith(f"{looker.metric}: a round could not be judged: TypeError: ")


def test_an_error_where_samples_are_read_is_told_once_and_the_next_samples_are_read(
    launch: WatchedLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = Looker(launch, listener := Listener())
    launch.told()
    with monkeypatch.context() as patch:
        patch.setattr(looker.watcher._source, "read", lambda: 1 / 0)
        for _ in range(3):
            looker.look()
    looker.round([reading(device) for device in DEVICES])
    assert len(listener.rounds) == 1
    assert [text for text in launch.told() if "round 1" not in text] == [
        f"{looker.metric}: what is new could not be read: ZeroDivisionError: division by zero"
    ]


def test_a_request_that_cannot_be_sent_holds_up_no_other(
    launch: WatchedLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = Looker(launch, Listener())
    launch.told()
    ask = Control.ask

    def refuse_verdicts(control: Control, kind: Any, body: Sequence[Any]) -> None:
        if kind == "verdicts":
            raise ValueError("not JSON")
        ask(control, kind, body)

    monkeypatch.setattr(Control, "ask", refuse_verdicts)
    looker.round([reading(device) for device in DEVICES])
    looker.look()
    words = "no reading so far: round 1", "what is new could not be read: ValueError: not JSON"
    assert launch.told() == [f"{looker.metric}: {each}" for each in words]


DETECT = """
import sys
from laggard.detectors.judging.sources import StreamSource
from laggard.resilience.agent.detect import main
from laggard.resilience.wire.detection import Watch

def read(source):
    raise SystemExit("the end")

StreamSource.read = read
main(Watch(0.1, inline_probes=True, watched=(sys.argv[1],)))
"""


@pytest.mark.parametrize("watched", ["slow-gpu", "sections"])
def test_under_detect_too_the_end_of_a_watchers_thread_is_told(launch: WatchedLaunch, watched: str) -> None:
    launch.told()
    metric = f"{SECTION_TIME}forward" if watched == "sections" else "gpu-probe-time"
    with subprocess.Popen([sys.executable, "-c", DETECT, watched], stderr=subprocess.DEVNULL) as process:
        expected = f"{metric}: nothing is judged any more: the detector has ended: SystemExit: the end"
        told: list[str] = []

        def look() -> bool:
            launch.write(metric, [reading(("node1", "0"), rank="0")])
            told.extend(launch.told())
            return expected in told

        wait_until(look, lambda: str(told))
        assert told.count(expected) == 1
        process.send_signal(signal.SIGTERM)


def test_the_end_of_the_thread_that_looks_for_sections_is_told(
    launch: WatchedLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise MemoryError("no thread left")

    monkeypatch.setattr(SectionDetector, "_watcher", end)
    launch.told()
    told: list[str] = []

    def look() -> bool:
        told.extend(launch.told())
        return bool(told)

    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with SectionDetector():
        launch.write(f"{SECTION_TIME}backward", [reading(("node1", "0"), rank="0")])
        wait_until(look)
    assert told == ["sections: nothing is judged any more: the detector has ended: MemoryError: no thread left"]


def test_what_else_a_process_has_stored_of_itself_keeps_no_round_from_being_judged(launch: WatchedLaunch) -> None:
    key, client = launch.endpoint.key, launch.client
    client.hset(key("progress", "0"), mapping={"step": b"\xff", "checkpointed": "nan"})
    client.hset(key("phases", "0"), mapping={"a": b"\xff", "b": "[" * 9999, "c": "[1]", "d": '{"host": 3}'})
    client.set(key("reserve", "0"), "many")
    client.sadd(key("metrics"), b"\xff", SECTION_TIME + "x" * 100_000)
    launch.control.tell_phase("e", phase := PhaseRecord("node1", "save", 1, running=False))
    assert launch.control.read_phases() == {"e": phase}
    assert launch.control.read_progress() is launch.control.read_progress("checkpointed") is None
    assert launch.control.read_reserve() is None
    launch.told()
    with SlowGPUDetector(INTERVAL_S, inline_probes=True, restart_cost=0) as detector:
        assert detector.judge({device: [0.01] for device in DEVICES}, 1.0) == []
    assert launch.told() == []
    client.delete(key("progress", "0"), key("phases", "0"), key("reserve", "0"), key("metrics"))
