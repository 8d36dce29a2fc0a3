"""What a job decides does not depend on words: with each wording replaced by a hash of it, the same is decided."""

from __future__ import annotations

import hashlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import laggard
from laggard.collectors.links.collector import LinkReport
from laggard.collectors.links.prober import FIRST_BYTES
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.symptoms import LinkSymptoms
from laggard.detectors import SlowGPUDetector, Verdict
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.link_readings import LinkReadings
from laggard.detectors.judging.section_readings import Condition, Probes, SectionReadings, worker_of
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis
from laggard.kvstore.control import LaunchRecord, NodeRecord
from laggard.resilience.record.effective_time import effective_time
from laggard.resilience.report.inputs import read_inputs
from tests.made_up_job import write_record

NODES = tuple(f"node{number}" for number in range(1, 5))
LAUNCH = LaunchRecord(0, tuple(NodeRecord(host, "", ("0", "1")) for host in NODES), (NodeRecord("node9", "", ()),))
DEVICES = [(host, gpu) for host in NODES for gpu in ("0", "1")]

Decisions = list[Any]
Loop = Callable[[Path], Decisions]


def decisions_of(verdicts: list[Verdict]) -> Decisions:
    """Return what is decided on, without any text."""
    return [
        (
            each.host,
            each.gpu,
            each.slowdown,
            each.severity,
            each.action,
            each.cause.kind,
            type(each.evidence.found),
            each.evidence.weighed,
        )
        for each in verdicts
    ]


def a_slow_device(_: Path) -> Decisions:
    """A device becomes slow, is well for a while, and is slow until a restart pays; its verdicts go through JSON."""
    detector = SlowGPUDetector(min_slowdown=1.05, restart_cost=40)
    detector._judge.begin(LAUNCH, "run")
    for device in DEVICES:
        cause = {"cause": '["cooling", "91 C"]'} if device == DEVICES[5] else {}
        detector.note_device(device, {"model": "V100"} | cause)
    verdicts = list[Verdict]()
    for number in range(60):
        slow = 12 <= number < 17 or number >= 25
        readings = {
            device: [0.01 * (1.5 if slow and device == DEVICES[5] else 1) * (1 + 1e-3 * ((number + place) % 3))]
            for place, device in enumerate(DEVICES)
        }
        fields = json.dumps([verdict.to_fields() for verdict in detector.judge(readings, 10.0 * number)])
        verdicts += map(Verdict.of_fields, json.loads(fields))
    return decisions_of(verdicts)


def a_section(_: Path) -> Decisions:
    """A rank is slow in a section; test kernels have not run on its device, and later find it well."""
    answers: dict[str, Condition] = {"now": "not known"}
    probes = Probes(lambda *_: answers["now"])
    readings = SectionReadings("forward", SlowGPUAnalysis(min_slowdown=1.1), {}, probes, {})
    judge = Judge(readings, Restarts(RestartCost(0.0)))
    judge.begin(LAUNCH)
    workers = []
    for rank in range(8):
        tags = {"host": NODES[rank // 2], "rank": str(rank), "gpu": str(rank % 2)}
        workers.append(worker_of(tags))
        judge.note_device(workers[-1], tags)
    verdicts = []
    for number in range(40):
        if number == 26:
            answers["now"] = "well"
        readings_s = {
            worker: [0.02 * (1.3 if number > 11 and rank == 5 else 1) * (1 + 1e-3 * ((number + rank) % 3))]
            for rank, worker in enumerate(workers)
        }
        verdicts += judge.judge(readings_s, 3.0 * number)
    whys = [verdict.evidence.weighed.why for verdict in verdicts if verdict.evidence.weighed is not None]
    assert [why.kind for why in whys if why is not None] == ["not probed since", "device is well"]
    return decisions_of(verdicts)


def a_link(_: Path) -> Decisions:
    """A node sends slowly; later its links are full, and a pair is slow."""
    told: list[int] = [FIRST_BYTES]
    analysis = SlowLinkAnalysis(NODES, min_slowdown=1.1)
    readings = LinkReadings(analysis, lambda n_bytes, _: told.append(n_bytes), 0.0)
    judge = Judge(readings, Restarts(RestartCost(300.0)))
    judge.begin(LAUNCH)
    verdicts, notices = list[Verdict](), list[Any]()
    for number in range(40):
        for host in NODES:
            found = [
                LinkReading(number, sender, receiver, _link_s(number, sender, receiver, told[-1]), told[-1], 0.0)
                for sender, receiver in permutations(NODES, 2)
                if sender == host
            ]
            symptoms = LinkSymptoms("eth0", 1000 if host == "node3" else 100_000, "full")
            judge.note_device((host, ""), LinkReport(tuple(found), symptoms=symptoms).tags(host))
        verdicts += judge.judge({}, 30.0 * number)
        notices += map(type, judge.take_notices())
    assert [verdict.action for verdict in verdicts] == ["report", "restart"]
    return [*decisions_of(verdicts), notices, told]


def _link_s(number: int, sender: str, receiver: str, n_bytes: int) -> float:
    slowdown = 1.0
    if number > 10 and sender == "node3":
        slowdown = 2.0
    if number > 25 and {sender, receiver} == {"node1", "node2"}:
        slowdown = 1.8
    return slowdown * n_bytes / 125e6


def a_report(folder: Path) -> Decisions:
    """A job's record is read for a report: launches, what they lost, who was accused, and which panels come first."""
    inputs = read_inputs(write_record(folder / "record"))
    timeline = inputs.timeline
    verdicts = [each.of for each in timeline.verdicts]
    losses = [(each.time_s, each.of) for each in timeline.failures]
    return [timeline.launches, verdicts, losses, effective_time(timeline), inputs.probes]


LOOPS: tuple[Loop, ...] = (a_slow_device, a_section, a_link, a_report)


def wording_modules() -> Iterator[ModuleType]:
    """Yield all modules of the product that make texts."""
    for found in pkgutil.walk_packages(laggard.__path__, "laggard."):
        if found.name.rpartition(".")[2] == "wording":
            yield import_module(found.name)


def hashed(words: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns a hash of another one's text."""

    def replaced(*given: Any, **named: Any) -> Any:
        text = words(*given, **named)
        return hashlib.sha256(text.encode()).hexdigest() if isinstance(text, str) else text

    return replaced


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_with_each_wording_replaced_by_a_hash_of_it_the_same_is_decided(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = loop(tmp_path / "words")
    assert expected != []
    replaced = []
    for module in wording_modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                monkeypatch.setattr(module, name, hashed(function))
                replaced.append(f"{module.__name__}.{name}")
    assert "laggard.detectors.wording.evidence" in replaced
    assert loop(tmp_path / "hashes") == expected


def test_the_replacement_reaches_what_people_read(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = Verdict.of_fault("node1", "0", "3 wrong results")
    assert str(verdict.evidence) == "node1 gpu 0: 3 wrong results"
    module = import_module("laggard.detectors.wording")
    monkeypatch.setattr(module, "evidence", hashed(module.evidence))
    assert str(verdict.evidence) == hashlib.sha256(b"node1 gpu 0: 3 wrong results").hexdigest()
    assert Verdict.of_fields(verdict.to_fields()).evidence == verdict.evidence
