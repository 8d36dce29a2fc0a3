"""The course of a job, rebuilt from its journal or from the events in a dump."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from laggard.detectors.evidence import Slow, StillSlow
from laggard.detectors.verdict import Action, Evidence, Verdict
from laggard.kvstore.control import NodeRecord
from laggard.resilience.decision.events import OutageEnded, ProgramHung
from laggard.resilience.decision.failure import Failure
from laggard.resilience.reading.targets import NoAnswer, Target, Unanswered
from laggard.resilience.record.entries import (
    FailureFound,
    GaveUp,
    HangFound,
    JobEnded,
    LaunchEnded,
    NodeAdded,
    Record,
    Told,
)
from laggard.resilience.record.journal import Entry
from laggard.resilience.record.timeline import RecordedVerdict, Timeline, timeline_of_entries
from laggard.telemetry.course import Gap, JobBegan, LaunchBegan, LaunchProgressed, Progress

BEGAN = JobBegan("train", "a1", ("python", "train.py"), (NodeRecord("n1", "", ("0", "1")),), 3, 4242)
SECOND_US = 1_000_000


def rebuilt(*entries: tuple[float, Record]) -> Timeline:
    return timeline_of_entries([Entry(0.0, BEGAN), *(Entry(*each) for each in entries)])


def verdict(host: str, action: Action = "restart") -> Verdict:
    return Verdict(host, "0", 1.5, "slow", Evidence(host, "0", StillSlow(1.5)), action=action)


def failure(host: str) -> Failure:
    return Failure(host, 1, 7, 1, 1, 0.0, 9.0, "odd", "an error", "program", "")


def test_a_journal_begins_with_the_job() -> None:
    with pytest.raises(ValueError, match="its first entry is not the job's beginning"):
        timeline_of_entries([Entry(0.0, JobEnded(0))])
    found = rebuilt()
    assert (found.name, found.command) == ("train-a1", "python train.py")
    assert (found.began_s, found.ended_s, found.exit_code, found.error) == (0.0, 0.0, None, "")
    assert (found.devices, found.hosts, found.launches) == ({"n1": ("0", "1")}, ["n1"], ())


@pytest.mark.parametrize(
    ("entries", "ended_s", "exit_code", "error"),
    [
        ([(5.0, Told("node", "x")), (7.0, Told("node", "y"))], 7.0, None, ""),  # it was killed, or still runs
        ([(5.0, JobEnded(3)), (7.0, Told("report", "y"))], 5.0, 3, ""),
        ([(5.0, GaveUp("the disk is full")), (7.0, Told("report", "y"))], 5.0, None, "the disk is full"),
        ([(5.0, GaveUp("no disk")), (6.0, JobEnded(69))], 6.0, 69, "no disk"),
        ([(5.0, JobEnded(69)), (6.0, GaveUp("no disk"))], 6.0, 69, "no disk"),
    ],
)
def test_a_job_ends_with_its_end_or_when_laggard_gave_up_or_else_with_the_last_entry(
    entries: list[tuple[float, Record]], ended_s: float, exit_code: int | None, error: str
) -> None:
    found = rebuilt(*entries)
    assert (found.ended_s, found.exit_code, found.error) == (ended_s, exit_code, error)


def test_a_launch_has_its_gap_its_end_its_progress_and_whom_the_next_one_does_without() -> None:
    found = rebuilt(
        (0.5, LaunchEnded(0, (), "stop")),  # of no launch
        (1.0, LaunchBegan(0, ("n1", "n2"), ("n3",), "n1")),
        (2.0, LaunchProgressed(0, Progress(1.9, 1, 5.0))),
        (9.0, LaunchEnded(0, (), "failure", 10.0)),
        (39.0, OutageEnded(Unanswered(Target("name", "db"), NoAnswer("not resolved"), "n1", 19.0), 20.0)),
        (40.0, LaunchBegan(1, ("n1", "n3"), (), "n1", Gap(1.0, 2.0, 3.0))),
        (41.0, LaunchProgressed(1, Progress(40.5, 2, None))),
        (42.0, LaunchProgressed(0, Progress(1.5, 0, None))),  # held back
        (43.0, NodeAdded(NodeRecord("n4", "", ("0",)))),
    )
    first, second = found.launches
    assert (first.began_s, first.ended_s, first.cause, first.wait_s, first.excluded) == (1, 9, "failure", 30, ("n2",))
    assert [each.time_s for each in first.progress] == [1.5, 1.9]
    assert (dict(first.gap_s), sum(second.gap_s.values())) == ({}, 6.0)
    assert math.isnan(second.ended_s)
    assert (second.excluded, [each.time_s for each in second.progress]) == ((), [40.5])
    assert found.hosts == ["n1", "n2", "n3", "n4"]
    assert found.devices == {"n1": ("0", "1"), "n4": ("0",)}


def test_failures_and_verdicts_are_those_of_the_launch_in_which_they_came() -> None:
    found = rebuilt(
        (1.0, LaunchBegan(0, ("n1", "n2"), (), "n1")),
        (2.0, verdict("n2", "report")),
        (3.0, verdict("n2")),
        (4.0, verdict("n1")),
        (5.0, HangFound(0, ProgramHung(60.0, suspect="n2"), "stacks")),
        (6.0, FailureFound(failure("n1"))),
        (9.0, LaunchBegan(1, ("n1",), (), "n1")),
        (9.5, verdict("n2")),
        (12.0, LaunchBegan(2, ("n1",), (), "n1")),
    )
    first, second, third = found.launches
    assert found.launch_at(0.9) is None
    assert [found.launch_at(at_s) for at_s in (1.0, 8.9, 9.0, 99.0)] == [first, first, second, third]
    assert (found.verdict_that_ended(first) or found.verdicts[0]).time_s == 3.0  # of a node that is out
    assert found.verdict_that_ended(second) is None  # nobody is out after it
    assert [each.kind for each in found.failures] == ["hang", "program"]
    last = found.failure_of(first)
    assert last is not None
    assert (last.kind, last.host, found.failures[0].host) == ("program", "n1", "n2")
    assert found.failure_of(second) is None
    assert [each.target for each in found.verdicts[:1]] == ["n2 gpu 0"]
    assert replace(found.verdicts[0], of=replace(found.verdicts[0].of, gpu=None)).target == "n2"


def test_a_failure_alone_is_what_a_launch_ended_with() -> None:
    found = rebuilt((1.0, LaunchBegan(0, ("n1",), (), "n1")), (6.0, FailureFound(failure("n1"))))
    assert found.failure_of(found.launches[0]) == found.failures[0]


@pytest.mark.parametrize(
    ("slow", "since_s"),
    [(Slow(1.5, "peers", since_s=70.0), 70.0), (Slow(1.5, "peers"), 90.0), (StillSlow(1.5), 90.0)],
)
def test_a_device_is_slow_since_its_first_slow_round_if_that_is_known(slow: Slow | StillSlow, since_s: float) -> None:
    told = RecordedVerdict(90.0, Verdict("n1", "0", 1.5, "slow", Evidence("n1", "0", slow)))
    assert told.since_s == since_s
    assert not told.is_over
    assert replace(told, of=replace(told.of, severity="well again")).is_over


@pytest.mark.parametrize(("gpu", "about"), [("0", [True, False, False, False]), (None, [True, True, True, False])])
def test_a_verdict_on_a_node_is_about_all_of_its_devices(gpu: str | None, about: list[bool]) -> None:
    told = RecordedVerdict(90.0, replace(verdict("n1"), gpu=gpu))
    assert [told.is_about(*whom) for whom in (("n1", "0"), ("n1", "1"), ("n1", None), ("n2", "0"))] == about
