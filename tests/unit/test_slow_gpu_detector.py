"""SlowGPUDetector between the rounds and the verdicts: which devices are compared, and by which analysis."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from laggard.collectors import group
from laggard.collectors.device import DeviceId, VirtualDevice
from laggard.collectors.slow_gpu_collector import SlowGPUCollector
from laggard.detectors import SlowGPUDetector, Verdict
from laggard.detectors.detector import Window
from laggard.detectors.restart_cost import RestartCost
from laggard.kvstore.control import LaunchRecord
from laggard.kvstore.state import State

DEVICES: list[DeviceId] = [(f"node{node}", str(gpu)) for node in range(4) for gpu in range(2)]


class Play:
    """Rounds of readings for a detector, with the tags that the collectors give."""

    def __init__(self, detector: SlowGPUDetector, models: Mapping[DeviceId, str]) -> None:
        self.detector = detector
        self._random = np.random.default_rng(5)
        self._models = models
        for device in DEVICES:
            detector.note_device(device, {"host": device[0], "gpu": device[1], "model": models[device]})

    def rounds(self, count: int, ratios: Mapping[DeviceId, float]) -> list[Verdict]:
        found = []
        for number in range(count):
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
    detector = SlowGPUDetector(min_slowdown=1.05)
    play = Play(detector, ONE_MODEL)
    cause = "cooling: the clock was held back by heat for 80% of the round"
    for device in (DEVICES[6], DEVICES[7]):
        detector.note_device(device, {"model": "V100"} | ({"cause": cause} if device == DEVICES[7] else {}))

    (verdict,) = play.rounds(16, {DEVICES[7]: 2.0})

    assert (verdict.host, verdict.gpu, verdict.cause) == ("node3", "1", cause)


def test_the_users_groups_go_before_the_model() -> None:
    groups: dict[DeviceId, Hashable] = {device: int(device[1]) for device in DEVICES}
    play = Play(SlowGPUDetector(groups=groups), ONE_MODEL)
    assert play.rounds(16, {device: 1.7 for device in DEVICES if device[1] == "1"}) == []


def test_a_device_that_joins_late_is_compared_with_its_model() -> None:
    detector = SlowGPUDetector(min_slowdown=1.05)
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
    slow = {DEVICES[7]: 1.2}
    assert {verdict.action for verdict in play.rounds(12, slow)} == {"report"}
    detector.set_thresholds(min_slowdown=1.1)
    assert {verdict.severity for verdict in play.rounds(12, slow)} == {"slow"}
    detector.set_thresholds(restart_cost=RestartCost(0.0))
    assert [verdict.action for verdict in play.rounds(2, slow)] == ["restart"]
    with pytest.raises(ValueError, match="min_slowdown must be a ratio above 1"):
        detector.set_thresholds(min_slowdown=0.9)


@pytest.mark.parametrize(
    ("relaunch_s", "given", "actions"),
    [
        (60.0, None, ["report", "restart"]),
        (60.0, RestartCost(0.0), ["restart"]),
        (None, None, ["restart"]),
    ],
    ids=["measured", "the user's own", "a first launch"],
)
def test_the_measured_cost_of_the_last_relaunch_counts_where_the_user_gives_none(
    relaunch_s: float | None, given: RestartCost | None, actions: list[str]
) -> None:
    detector = SlowGPUDetector(min_slowdown=1.05, restart_cost=given)
    detector._slow_gpu_judge.begin(LaunchRecord(1, (), (), relaunch_s=relaunch_s), run="a")
    slow = {DEVICES[7]: 2.0}  # half of the wall time is lost, and a round takes ten seconds
    assert [verdict.action for verdict in Play(detector, ONE_MODEL).rounds(16, slow)] == actions


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
    assert isinstance(sent, SlowGPUCollector)
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
