"""Whatever a process says of its own node, and whatever State holds under a detector's key, rounds are judged."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from laggard.collectors.links.collector import LinkReport
from laggard.collectors.links.prober import FIRST_BYTES
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.symptoms import LinkSymptoms
from laggard.detectors import SlowGPUAnalysis, SlowGPUDetector
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.device_readings import HISTORY_KEY, DeviceReadings
from laggard.detectors.judging.history_store import HistoryStore, SectionKeeper
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.link_readings import LinkReadings
from laggard.detectors.judging.section_readings import Probes, SectionReadings, worker_of
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis
from laggard.kvstore.control import LaunchRecord, NodeRecord, Signs
from tests.kept import Kept

HOSTS = ("node1", "node2", "node3", "node4")
DEVICES = [(host, gpu) for host in HOSTS for gpu in "01"]
LAUNCH = LaunchRecord(0, tuple(NodeRecord(host, "", ("0", "1")) for host in HOSTS), (NodeRecord("node5", "", ()),))

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SECONDS = st.lists(st.floats() | st.sampled_from([0.0, -1.0, 1e-320, 1e308, math.nan, math.inf]), max_size=3)
TIMES = st.floats() | st.sampled_from([1e20, -1e20, math.nan, math.inf, -math.inf, 0.0])


def mutated(value: Any, path: list[int], other: Any) -> Any:
    """Return plain values in which the one at the end of a path is another."""
    if not path or not isinstance(value, (dict, list)) or not value:
        return other
    keys = sorted(value) if isinstance(value, dict) else range(len(value))
    key = keys[path[0] % len(keys)]
    copy = value.copy()
    copy[key] = mutated(value[key], path[1:], other)
    return copy


PATHS = st.lists(st.integers(0, 30), min_size=1, max_size=5)


@given(
    reports=st.lists(st.tuples(PATHS, JSON | st.sampled_from([0, -1, "node1", "elsewhere", 2**63])), max_size=8),
    now_s=TIMES,
)
def test_whatever_a_node_reports_of_its_links(reports: list[tuple[list[int], Any]], now_s: float) -> None:
    readings = LinkReadings(SlowLinkAnalysis(HOSTS, min_slowdown=1.1), lambda *_: None, 0.0)
    judge = Judge(readings, Restarts())
    judge.begin(LAUNCH)
    symptoms = LinkSymptoms("eth0", 100_000, "full", {"rx_errors": 3})
    for number, (path, other) in enumerate([*reports, ([30], 0)], 1):
        for host in HOSTS:
            found = [LinkReading(number, *pair, 0.0301, FIRST_BYTES, 0.0) for pair in permutations(HOSTS, 2)]
            mine = tuple(each for each in found if each.sender == host)
            tags = LinkReport(mine, {"node3": "no answer"} if host == "node4" else {}, symptoms).tags(host)
            if host == "node4":
                changed = mutated(json.loads(tags["report"]), path, other)
                tags |= {"report": json.dumps(changed)}
            with contextlib.suppress(ValueError):  # the watcher says so
                judge.note_device((host, ""), tags)
        judge.judge({}, number if number > len(reports) else now_s)
        judge.take_notices()
    assert {host for host, _ in readings.judged({})} >= set(HOSTS[:3])


WORKERS = st.dictionaries(st.sampled_from(["rank", "gpu", "process", "group"]), st.text(max_size=5))


@given(
    tags=st.lists(WORKERS, max_size=8),
    seconds=st.lists(SECONDS, min_size=8, max_size=8),
    now_s=TIMES,
)
def test_whatever_a_process_says_of_its_sections(
    tags: list[dict[str, str]], seconds: list[list[float]], now_s: float
) -> None:
    sections = SectionReadings("forward", SlowGPUAnalysis(), {}, Probes(), {})
    judge = Judge(sections, Restarts())
    judge.begin(LAUNCH)
    for number, spoken in enumerate(tags):
        readings = {}
        for host, gpu in DEVICES:
            own = {"host": host, "rank": gpu, "gpu": gpu} if host != "node4" else {"host": host, **spoken}
            with contextlib.suppress(ValueError):  # it is refused where samples are read
                worker = worker_of(own)
                judge.note_device(worker, own)
                readings[worker] = [0.01] if host != "node4" else seconds[number]
        judge.judge(readings, now_s)


def detector_with(kept: Mapping[str, Any]) -> SlowGPUDetector:
    detector = SlowGPUDetector(state=Kept.of(kept), restart_cost=40)
    detector._judge.begin(LAUNCH, "run", lambda: Signs(0, 1.0, 1.0))
    return detector


def play(detector: SlowGPUDetector, rounds: int, seconds: list[float] | None = None, now_s: float | None = None) -> int:
    """Judge rounds in which a device is slow from the tenth on, and return how many verdicts there are."""
    found = 0
    for device in DEVICES:
        detector.note_device(device, {"model": "V100", "uuid": f"GPU-{device}"})
    for number in range(rounds):
        slow = {("node1", "1"): [0.03]} if number >= 10 else {}
        own = {("node4", "1"): seconds} if seconds else {}  # as the only one, it may have several repeats
        readings = {device: [0.01] for device in DEVICES} | slow | own
        verdicts = detector.judge(readings, 3.0 * number if now_s is None else now_s)
        assert all(each.to_fields() for each in verdicts)
        found += len(verdicts)
    return found


@example([2.0, 0.125], 0.0)  # it alone has two repeats, and these are no measure of the others' noise
@given(seconds=SECONDS, now_s=TIMES)
def test_at_whatever_time(seconds: list[float], now_s: float) -> None:
    assert play(detector_with({}), 20, seconds, now_s) > 0


def kept_of_a_run() -> Any:
    detector = detector_with({})
    play(detector, 24)
    detector.stop()
    keeper = detector._judge._keeper
    assert isinstance(keeper, HistoryStore)
    return json.loads(json.dumps(keeper.read(HISTORY_KEY)))


KEPT = kept_of_a_run()


@example(path=[0, 2, 0, 1], other="")
@example(path=[0, 2, 1, 1], other="")
@example(path=[0, 2, 0], other=dict.fromkeys(KEPT["analysis"]["groups"]["noise"], ""))
@given(path=PATHS, other=JSON)
def test_whatever_state_holds_where_the_history_was(path: list[int], other: Any) -> None:
    detector = detector_with({HISTORY_KEY: mutated(KEPT, path, other)})
    play(detector, 12)


@given(kept=JSON | st.fixed_dictionaries({"sections": JSON, "asked": JSON}))
def test_whatever_state_holds_where_sections_were(kept: Any) -> None:
    keeper = SectionKeeper(HistoryStore(Kept.of({"laggard/slow-sections": kept})))
    keeper.begin()
    readings = DeviceReadings(min_slowdown=1.05, false_alarm_budget=1e-4)
    judge = Judge(readings, Restarts(), keeper, "forward")
    judge.begin(LAUNCH)
    assert judge.judge({device: [0.01] for device in DEVICES}, 1.0) == []
