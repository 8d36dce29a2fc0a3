"""SlowGPUDetector between the rounds and the verdicts: which devices are compared, and by which analysis."""

from __future__ import annotations

import json
import math
import pickle
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from laggard.collectors import group
from laggard.collectors.causes import UNKNOWN, Cause
from laggard.collectors.device import DeviceId, VirtualDevice
from laggard.collectors.probes import WRONG
from laggard.collectors.slow_gpu_collector import SlowGPU
from laggard.detectors import SectionDetector, SlowGPUAnalysis, SlowGPUDetector, SlowLinkDetector, Verdict
from laggard.detectors.detector import Detector, Window
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.judging.device_readings import DeviceReadings
from laggard.detectors.judging.history_store import HistoryStore
from laggard.detectors.judging.judge import Judge, Moment
from laggard.kvstore.control import LaunchRecord, NodeRecord, PhaseRecord, Signs
from laggard.kvstore.state.mapping import State
from tests.kept import Kept

DEVICES: list[DeviceId] = [(f"node{node}", str(gpu)) for node in range(4) for gpu in range(2)]


class Play:
    """Rounds of readings for a detector, with the tags that the collectors give."""

    def __init__(self, detector: SlowGPUDetector, models: Mapping[DeviceId, str]) -> None:
        self.detector = detector
        self._random = np.random.default_rng(5)
        self._models = models
        for device in DEVICES:
            detector.note_device(device, {"host": device[0], "gpu": device[1], "model": models[device]})

    def rounds(self, count: int, ratios: Mapping[DeviceId, float], first: int = 0) -> list[Verdict]:
        found = []
        for number in range(first, first + count):
            readings = {
                device: [0.01 * ratios.get(device, 1.0) * float(np.exp(self._random.normal(0, 0.001)))] * 3
                for device in DEVICES
            }
            found += self.detector.judge(readings, 10.0 * number)
        return found


ONE_MODEL = dict.fromkeys(DEVICES, "V100")


def test_devices_of_another_model_are_not_peers() -> None:
    two_models = ONE_MODEL | dict.fromkeys(DEVICES[6:], "K80")
    play = Play(SlowGPUDetector(min_slowdown=1.05), two_models)
    assert play.rounds(16, dict.fromkeys(DEVICES[6:], 2.0)) == []
    assert {verdict.host for verdict in Play(SlowGPUDetector(), ONE_MODEL).rounds(16, {DEVICES[7]: 2.0})} == {"node3"}


def test_a_verdict_has_the_cause_in_the_devices_tags() -> None:
    detector = SlowGPUDetector(min_slowdown=1.05, restart_cost=0)
    play = Play(detector, ONE_MODEL)
    cause = Cause("cooling", "the clock was held back by heat for 80% of the round")
    for device in (DEVICES[6], DEVICES[7]):
        detector.note_device(device, {"model": "V100"} | ({"cause": cause.to_tag()} if device == DEVICES[7] else {}))

    (verdict,) = play.rounds(16, {DEVICES[7]: 2.0})

    assert (verdict.host, verdict.gpu, verdict.cause) == ("node3", "1", cause)


def test_a_device_that_computes_wrong_results_is_accused_once_however_fast_it_is() -> None:
    play = Play(SlowGPUDetector(), ONE_MODEL)
    assert play.rounds(1, {}) == []
    play.detector.note_device(DEVICES[7], {"model": "V100", WRONG: "gemm_fp32: 3 results are wrong"})

    (verdict,) = play.rounds(3, {})

    assert (verdict.host, verdict.gpu, verdict.severity, verdict.action) == ("node3", "1", "faulty", "restart")


def test_the_users_groups_go_before_the_model() -> None:
    groups: dict[DeviceId, Hashable] = {device: int(device[1]) for device in DEVICES}
    play = Play(SlowGPUDetector(groups=groups), ONE_MODEL)
    assert play.rounds(16, {device: 1.7 for device in DEVICES if device[1] == "1"}) == []


def test_a_device_that_joins_late_is_compared_with_its_model() -> None:
    detector = SlowGPUDetector(min_slowdown=1.05, restart_cost=0)
    play = Play(detector, ONE_MODEL)
    play.rounds(2, {})
    detector.note_device(("node9", "0"), {"model": "V100"})
    DEVICES.append(("node9", "0"))
    try:
        assert [verdict.host for verdict in play.rounds(16, {("node9", "0"): 1.5})] == ["node9"]
    finally:
        DEVICES.pop()


def test_thresholds_and_cost_can_be_changed_while_the_job_runs() -> None:
    detector = SlowGPUDetector(min_slowdown=1.5, restart_cost=RestartCost(1e9))
    play = Play(detector, ONE_MODEL)
    assert play.rounds(10, {}) == []
    slow = {DEVICES[7]: 1.3}
    assert {verdict.action for verdict in play.rounds(12, slow)} == {"report"}
    detector.set_thresholds(min_slowdown=1.1)
    assert {verdict.severity for verdict in play.rounds(12, slow)} == {"slow"}
    detector.set_thresholds(restart_cost=RestartCost(0.0))
    assert [verdict.action for verdict in play.rounds(2, slow)] == ["restart"]


class Judged(Detector):
    """A user's detector."""

    metric_name = "speed"

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        raise AssertionError((data, analysis_args))


NO_RATIOS = [0, 1, 0.9, -2, math.nan, math.inf, "1.2", True, [1.2], 10**400]


@pytest.mark.parametrize("value", NO_RATIOS, ids=repr)
@pytest.mark.parametrize("make", [SlowGPUDetector, SectionDetector, SlowLinkDetector, SlowGPUAnalysis])
def test_a_slowdown_out_of_range_is_refused_at_once(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match="min_slowdown must be a ratio above 1") as refused:
        make(min_slowdown=value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("value", [0, 1, -1e-4, math.nan, math.inf, "0.1", True], ids=repr)
@pytest.mark.parametrize("make", [SlowGPUDetector, SectionDetector, SlowLinkDetector, SlowGPUAnalysis])
def test_a_budget_out_of_range_is_refused_at_once(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"between 0 and 1, got {value!r}")):
        make(false_alarm_budget=value)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "300", True], ids=repr)
@pytest.mark.parametrize("make", [SlowGPUDetector, SectionDetector, SlowLinkDetector])
def test_a_cost_out_of_range_is_refused_at_once(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"zero or more seconds, got {value!r}")):
        make(restart_cost=value)
    with pytest.raises(ValueError, match=re.escape(f"(or None), got {value!r}")):
        RestartCost(1.0, value)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "3", True], ids=repr)
@pytest.mark.parametrize("make", [SlowGPUDetector, SlowLinkDetector, Judged])
def test_a_rate_out_of_range_is_refused_at_once(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"collection_rate is {value!r} s: it must be above 0")):
        make(value)


@pytest.mark.parametrize("value", [0, -1, 1.1, math.nan, math.inf, "0.1", True], ids=repr)
@pytest.mark.parametrize("make", [SlowGPUDetector, SlowLinkDetector])
def test_a_share_out_of_range_is_refused_at_once(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"max_intrusion is {value!r}: it is a share")):
        make(max_intrusion=value)


@pytest.mark.parametrize("value", NO_RATIOS, ids=repr)
def test_thresholds_out_of_range_change_nothing(value: Any) -> None:
    detector = SlowGPUDetector(min_slowdown=1.5, restart_cost=300)
    with pytest.raises(ValueError, match="min_slowdown must be a ratio above 1"):
        detector.set_thresholds(min_slowdown=value, restart_cost=0)
    with pytest.raises(ValueError, match="restart cost must be zero or more seconds"):
        detector.set_thresholds(min_slowdown=1.1, restart_cost=-1)
    assert detector._readings.min_slowdown == 1.5
    assert detector._judge.restarts.given == RestartCost(300)


def test_a_devices_uuid_is_that_of_no_other() -> None:
    detector = SlowGPUDetector()
    for device, name in zip(DEVICES, ["a", "b", "a"], strict=False):
        detector.note_device(device, {"uuid": name})
    detector.note_device(DEVICES[1], {"uuid": "c"})
    assert detector._readings.identities() == {DEVICES[0]: "a", DEVICES[1]: "b"}


NODES = tuple(NodeRecord(f"node{node}", "", ("0", "1")) for node in range(4))
RESERVE = (NodeRecord("node4", "", ("0", "1")),)


class Launch:
    """A launch whose program shows some signs, played in rounds of ten seconds."""

    def __init__(self, given: RestartCost | float | None = None, **record: Any) -> None:
        self.signs: Signs | None = None
        self.detector = SlowGPUDetector(min_slowdown=1.05, restart_cost=given)
        launch = LaunchRecord(1, NODES, **{"reserve": RESERVE, **record})
        self.detector._judge.begin(launch, "run", lambda: self.signs)
        self._play = Play(self.detector, ONE_MODEL)
        self._number = 0

    def rounds(self, count: int, ratios: Mapping[DeviceId, float] | None = None) -> list[Verdict]:
        found = self._play.rounds(count, ratios or {}, self._number)
        self._number += count
        return found


SLOW = {DEVICES[7]: 2.0}  # half of the wall time is lost


@pytest.mark.parametrize(
    ("given", "record", "actions", "says"),
    [
        (
            None,
            {"began_s": 20.0},
            ["report", "report"],
            "costs 70 s (assumed, since the program has shown no progress yet",
        ),
        (None, {"began_s": 20.0, "relaunch_s": 90.0}, ["report", "report"], "a restart costs 100 s (assumed, "),
        (None, {}, ["report"], "a restart costs 11 min (assumed, "),
        (40.0, {}, ["report", "restart"], "a restart costs 40 s (as given): not yet, at 00:0"),
        (220_000.0, {}, ["report"], "(as given): not yet, on 1970-01-02"),
        (RestartCost(1e10), {}, ["report"], "(as given): not yet, on 2"),
        (RestartCost(40.0, remaining_s=70.0), {}, ["report"], "no restart, since in the 70 s that remain"),
        (None, {"ends_s": 140.0}, ["report"], "no restart, since in the 110 s that remain it would not pay"),
        (None, {"ends_s": 10.0}, ["report"], "not yet"),  # it is over, and the job is not
        (0, {}, ["restart"], "by chance less than once in "),
        (RestartCost(0.0, remaining_s=1.0), {"reserve": ()}, ["restart"], "by chance less than once in "),
    ],
)
def test_a_restart_is_asked_for_when_it_is_worth_it_and_the_first_verdict_says_when(
    given: RestartCost | float | None, record: dict[str, Any], actions: list[str], says: str
) -> None:
    found = Launch(given, **record).rounds(15, SLOW)
    assert [verdict.action for verdict in found] == actions
    assert says in str(found[0].evidence)
    assert found[0].severity == found[-1].severity == "very slow"


def test_the_second_verdict_says_what_was_lost() -> None:
    _, verdict = Launch(100).rounds(20, SLOW)
    assert str(verdict.evidence).startswith(
        "node3 gpu 1: still slow: at least 99 % slower, 35 s lost in 70 s; a restart costs 100 s"
    )
    assert str(verdict.evidence).endswith("now, since it is likely to lose more than that")


def test_without_a_reserve_four_nodes_with_one_slow_go_on_if_they_do_more_than_three() -> None:
    [verdict] = Launch(reserve=()).rounds(60, {DEVICES[7]: 1.3})
    assert verdict.action == "report"
    assert str(verdict.evidence).endswith(
        "no restart, since no node is in reserve, and 4 nodes at this pace do more than 3"
    )
    launch = Launch(RestartCost(40.0, remaining_s=1000.0), reserve=())  # three nodes lose 250 s in that time
    assert [verdict.action for verdict in launch.rounds(60, {DEVICES[7]: 1.6})] == ["report", "restart"]


def test_a_reserve_that_is_lost_or_comes_back_meanwhile_counts() -> None:
    for in_the_record, now, actions in ((RESERVE, 0, ["report"]), ((), 1, ["report", "restart"])):
        launch = Launch(40.0, reserve=in_the_record)
        launch.signs = Signs(0, n_reserve=now)
        assert [verdict.action for verdict in launch.rounds(60, {DEVICES[7]: 1.3})] == actions


def test_the_cost_is_what_the_launch_took_to_its_first_progress_and_what_was_done_since_the_last_commit() -> None:
    launch = Launch(began_s=-30.0, commits=5)
    launch.signs = Signs(commits=5)
    launch.rounds(2)
    launch.signs = Signs(commits=6)
    launch.rounds(10)
    [verdict, *_] = launch.rounds(5, SLOW)
    assert re.search(
        r"costs \d+ s \(50 s to the first progress, 1\d\d s since the last commit\)", str(verdict.evidence)
    )


def test_an_incident_that_ends_by_itself_is_reported_with_what_it_cost_and_the_third_looks_like_a_phase() -> None:
    launch, ends = Launch(300.0), []
    launch.rounds(10)
    for rounds in (10, 17, 28, 28):  # the last is as the one before it: not a word
        launch.rounds(rounds, {DEVICES[7]: 1.2})
        ends += [verdict for verdict in launch.rounds(15) if verdict.severity == "well again"]
    assert [(verdict.host, verdict.gpu, verdict.action, verdict.slowdown) for verdict in ends] == [
        ("node3", "1", "report", 1.0)
    ] * 3
    assert (
        str(ends[0].evidence) == "node3 gpu 1: was slow for 90 s, 15 s lost; more of the same is not reported for a day"
    )
    assert "; the second time, " in str(ends[1].evidence)
    assert re.fullmatch(
        r"node3 gpu 1: was slow for \d+ s, \d+ s lost; the third time, \d+ s lost in all; looks like a phase; more .*",
        str(ends[2].evidence),
    )


def test_what_a_device_loses_by_being_slow_at_times_is_summed_up_until_a_restart_pays() -> None:
    launch, found = Launch(40.0), []
    launch.rounds(10)
    for _ in range(80):
        found += [*launch.rounds(1, {DEVICES[7]: 1.5}), *launch.rounds(4)]
    suspect, due = found
    assert (suspect.severity, suspect.action, suspect.evidence.at_times) == ("suspect", "report", True)
    assert str(suspect.evidence).endswith(
        "; a restart once its incidents have lost enough together; a restart costs 40 s (as given)"
    )
    assert (due.severity, due.action) == ("slow", "restart")
    assert re.match(
        r"node3 gpu 1: still slow at times: at least 49 % slower, 3\d s lost in 100 s; a restart", str(due.evidence)
    )


def test_what_another_version_has_kept_of_restarts_is_refused() -> None:
    kept = Restarts().to_state()
    Restarts().restore(kept, 0.0, same_run=True)
    assert kept["version"] == 5
    with pytest.raises(ValueError, match="state has version 1, this program reads version 5"):
        Restarts().restore(kept | {"version": 1}, 0.0, same_run=True)


def test_an_open_incident_is_kept_with_its_verdict() -> None:
    launch = Launch(120)
    [verdict] = launch.rounds(5, SLOW)
    assert launch.detector._judge.restarts is not None
    kept = json.loads(json.dumps(launch.detector._judge.restarts.to_state()))
    again = Restarts(RestartCost(40.0))
    again.begin(LaunchRecord(2, NODES, RESERVE))
    again.restore(kept, 60.0, same_run=True)
    [due] = again.weigh([], Grounds(lambda _: Episode(0.0, 2.0, 0.5)), set(DEVICES), 120.0)
    assert (verdict.action, due.action) == ("report", "restart")
    assert (due.host, due.gpu, due.severity, due.cause) == (verdict.host, verdict.gpu, verdict.severity, verdict.cause)


def test_a_slow_node_is_one_incident_from_its_first_verdict_to_its_last() -> None:
    launch = Launch(200.0)
    launch.rounds(10)
    found = launch.rounds(20, {DEVICES[6]: 1.5, DEVICES[7]: 2.0})
    assert [(verdict.host, verdict.gpu, verdict.action) for verdict in found] == [
        ("node3", None, "report"),
        ("node3", None, "restart"),
    ]
    assert re.search(r"node3: still slow: at least \d+ % slower, 50 s lost in 100 s; ", str(found[1].evidence))
    [verdict] = launch.rounds(20)
    assert re.fullmatch(r"node3: was slow for 190 s, \d\d s lost; more .*", str(verdict.evidence))


def test_in_a_declared_phase_nothing_is_held_against_its_node_and_nothing_is_learned() -> None:
    launch = Launch(0)
    launch.signs = Signs(commits=0)
    assert launch.rounds(10) == []
    for count in range(1, 4):
        launch.signs = Signs(0, phases={"node3/7": PhaseRecord("node3", "checkpoint", count, running=True)})
        assert launch.rounds(20, SLOW) == []
        launch.signs = Signs(0, phases={"node3/7": PhaseRecord("node3", "checkpoint", count, running=False)})
        assert launch.rounds(1, SLOW) == []  # its readings are from within the phase
        assert launch.rounds(10) == []
    assert [verdict.action for verdict in launch.rounds(8, SLOW)] == ["restart"]


def test_a_declared_phase_of_one_node_excuses_no_other() -> None:
    launch = Launch(0)
    launch.rounds(10)
    launch.signs = Signs(0, phases={"node1/7": PhaseRecord("node1", "checkpoint", 1, running=True)})
    assert [(verdict.host, verdict.gpu) for verdict in launch.rounds(8, SLOW)] == [("node3", "1")]


def test_a_phase_on_all_nodes_is_no_round_at_all() -> None:
    launch = Launch(0)
    launch.signs = Signs(0, phases={node.hostname: PhaseRecord(node.hostname, "save", 1, True) for node in NODES})  # noqa: FBT003
    assert launch.rounds(5, SLOW) == []


class Suspicious(SlowGPUDetector):
    """Accuses the first host that it is shown."""

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        del analysis_args
        return False, [min(data)[0]]


def test_a_users_own_analysis_replaces_ours() -> None:
    verdicts = Play(Suspicious(), ONE_MODEL).rounds(12, {DEVICES[7]: 3.0})
    assert {(verdict.host, verdict.gpu, verdict.action) for verdict in verdicts} == {("node0", None, "report")}


class SlowMemory(SlowGPUDetector):
    """Has a metric and a test of its own, and an attribute that the test needs."""

    metric_name = "memory-probe-time"
    repeats = 2

    def __init__(self, seconds: float, state: State) -> None:
        super().__init__(state=state)
        self.seconds = seconds

    def collector_test(self, args: Any) -> float:
        del args
        return self.seconds


def test_what_is_sent_to_the_nodes_is_the_collector_with_the_users_test_and_without_the_judge() -> None:
    state = cast(State, threading.Lock())  # cannot be pickled
    sent = pickle.loads(pickle.dumps(SlowMemory(0.25, state).for_nodes()))  # noqa: S301 - our own bytes
    assert isinstance(sent, SlowGPU)
    assert (sent.metric_name, sent.repeats) == ("memory-probe-time", 2)
    assert sent.collector_test(None) == 0.25


class TwiceTheProduct(SlowGPUDetector):
    """Builds its test on laggard's."""

    def collector_test(self, args: Any) -> float:
        self.product_s = super().collector_test(args)
        return 2 * self.product_s


def test_on_the_node_a_users_test_can_run_the_product(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent = pickle.loads(pickle.dumps(TwiceTheProduct().for_nodes()))  # noqa: S301 - our own bytes
    monkeypatch.setattr(group._current, "device", VirtualDevice("0", tmp_path), raising=False)
    seconds = sent.collector_test(None)
    assert seconds == 2 * sent.own_test.__self__.product_s > 0
    assert list(sent.probing) == ["0"]


def test_two_slow_devices_are_left_out_in_one_restart_as_far_as_there_are_reserves() -> None:
    one, both = {DEVICES[7]: 1.3}, {DEVICES[7]: 1.3, DEVICES[2]: 1.3}
    for reserve, hosts in ((RESERVE * 2, ["node1", "node3"]), (RESERVE, ["node3"])):
        launch = Launch(200.0, reserve=reserve)
        assert launch.rounds(12) == []
        launch.rounds(10, one)
        rounds = [launch.rounds(1, both) for _ in range(30)]
        asked = [[verdict for verdict in found if verdict.action == "restart"] for found in rounds]
        first = next(filter(None, asked))
        assert sorted(verdict.host for verdict in first) == hosts


def test_a_device_is_well_slow_not_known_or_not_probed() -> None:
    readings = DeviceReadings(min_slowdown=1.05, false_alarm_budget=1e-4)
    for device in DEVICES:
        readings.note_device(device, {"model": "V100"} if device[1] == "0" else {"cause": Cause("heat").to_tag()})
    for number in range(30):
        slow = {DEVICES[7]: [0.02]} if number >= 20 else {}
        readings.update({device: [0.01] for device in DEVICES} | slow, Moment(10.0 * number))
    conditions = [readings.probes.condition(device, 290.0) for device in (*DEVICES[6:8], ("node9", "0"))]
    assert conditions == ["well", "slow", "not probed"]
    assert readings.probes.condition(DEVICES[6], 290.1) == "not known"  # since then
    assert [readings.probes.model(device) for device in (*DEVICES[6:8], ("node9", "0"))] == ["V100", "", ""]
    assert readings.probes.cause(DEVICES[7]) == Cause("heat")
    assert readings.probes.cause(("node9", "0")) == UNKNOWN


def test_stopping_a_detector_that_does_not_watch_does_nothing() -> None:
    detector = SlowGPUDetector()
    detector.stop()
    detector.stop()


class Threshold(Detector):
    """Accuses the hosts of which one of the last readings is above a limit."""

    metric_name = "m"

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        self.seen = {device: len(values) for device, values in data.items()}
        return bool(analysis_args), sorted({host for (host, _), values in data.items() if max(values) > 1})


@pytest.mark.parametrize(("restart", "action"), [(True, "restart"), (False, "report")])
def test_a_users_analysis_has_the_last_four_rounds_and_says_whom_to_accuse(restart: bool, action: str) -> None:
    detector = Threshold(analysis_args=restart)
    assert detector.judge({("a", "0"): [2.0, 0.5], ("b", "0"): [1.0]}, 0.0) != []
    for number in range(3):
        [verdict] = detector.judge({("a", "0"): [0.5, 0.5], ("b", "0"): [1.0]}, float(number))
        assert (verdict.host, verdict.gpu, verdict.action, verdict.severity) == ("a", None, action, "slow")
    assert detector.seen == {("a", "0"): 8, ("b", "0"): 4}
    assert detector.judge({("a", "0"): [0.5, 0.5], ("b", "0"): [1.0]}, 9.0) == []
    assert detector.seen == {("a", "0"): 8, ("b", "0"): 4}
    assert detector.take_notices() == ()
    detector.stop()


def test_what_a_judge_learns_is_known_to_the_next_launch_and_what_it_has_not_read_it_does_not_replace() -> None:
    def judge(kept: dict[str, Any]) -> Judge:
        readings = DeviceReadings(min_slowdown=1.05, false_alarm_budget=1e-4)
        return Judge(readings, Restarts(RestartCost(0.0)), HistoryStore(Kept.of(kept)), "history")

    def rounds(of: Judge, count: int, slow: float) -> list[str]:
        seconds = {device: [0.01 * (1 + 0.001 * place)] for place, device in enumerate(DEVICES)}
        seconds[DEVICES[7]] = [0.01 * slow]
        return [str(found.evidence) for number in range(count) for found in of.judge(seconds, 10.0 * number)]

    kept = Kept()
    judge(kept).keep()
    assert kept == {}
    first = judge(kept)
    assert rounds(first, 12, 1.0) == []
    first.keep()
    known, unknown = (rounds(judge(each), 7, 1.3) for each in (kept, Kept()))
    assert "30 % slower than its own past and than 7 peers" in known[-1]
    assert "30 % slower than its 7 peers" in unknown[-1]
