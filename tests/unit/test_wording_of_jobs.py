"""Nothing decides by words: with a hash in the place of every sentence, jobs go the same way."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import pytest

import laggard
from laggard.records import plain, record_of
from laggard.resilience.decision.events import Decision, End, Event, JobStatus, NodeLost, ProgramHung, Settings
from laggard.resilience.decision.evidence import Finding, Found
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.hang import Silent
from laggard.resilience.decision.ledger import NodeEvidence
from laggard.resilience.decision.reasons import Change, Fact, NodeWord, WhyLost
from laggard.resilience.decision.stacks import Standing, Standstill
from laggard.resilience.record.entries import FailureFound, HangFound, JobEnded, LaunchEnded
from laggard.resilience.record.journal import JOURNAL_FILE, Entry, read_journal
from laggard.resilience.record.timeline import Timeline, timeline_of_entries
from laggard.resilience.report.costs import Costs, costs_of
from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from laggard.resilience.views.snapshot import Readings, compose
from laggard.resilience.views.story import story
from laggard.telemetry.course import Gap, LaunchBegan
from laggard.telemetry.events import events_of_series, series_of_events
from laggard.telemetry.page.content import accused
from tests.made_up_job import LENGTH_S, T0, entries, write_record
from tests.simulation.job import simulated_world
from tests.simulation.judge import Judge
from tests.simulation.mutants import simple_schedule
from tests.simulation.schedules import Schedule, run

PID = re.compile(r"pid=\d+")  # the simulated machines number their processes on from one job to the next


def wordings() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(laggard.__path__, "laggard."):
        if found.name.endswith(".wording"):
            yield importlib.import_module(found.name)


def functions_of(module: ModuleType) -> dict[str, FunctionType]:
    found = inspect.getmembers(module, inspect.isfunction)
    return {name: function for name, function in found if function.__module__ == module.__name__}


@contextmanager
def hashed() -> Iterator[None]:
    """Replace every sentence by a hash of itself."""
    with ExitStack() as stack:
        for module in wordings():
            for name, function in functions_of(module).items():
                stack.enter_context(patch.object(module, name, partial(_hash, function)))
        yield


def _hash(worded: Callable[..., str], *arguments: object, **named: object) -> str:
    return hashlib.sha256(worded(*arguments, **named).encode()).hexdigest()


def test_every_function_of_a_wording_returns_a_text() -> None:
    found = {f"{module.__name__}.{name}": each for module in wordings() for name, each in functions_of(module).items()}
    assert "laggard.resilience.decision.wording.reason" in found
    assert {name for name, each in found.items() if each.__annotations__["return"] != "str"} == set()


@pytest.mark.parametrize(
    "schedule",
    [
        simple_schedule(sick_host="n2"),
        simple_schedule(sick_host="n2", sick_exit=1, backoff_s=2.0),
        simple_schedule(chance_of_hang=0.3, hang_timeout_s=5.0),
        simple_schedule(("an agent is killed", 1.0, None), exhaust_resources=False, wait_for_nodes_s=20.0),
        simple_schedule(("the network is cut", 1.0, 12.0), hosts=("n1", "n2"), steps=12, exhaust_resources=False),
        simple_schedule(("the job is stopped", 1.0, None)),
        simple_schedule(in_vain=True),
    ],
    ids=["failure", "own failure", "hang", "lost node", "wait", "stop", "in vain"],
)
def test_a_job_goes_the_same_way_with_hashes_for_words(schedule: Schedule) -> None:
    plain_course, said = course_of(schedule)
    with hashed():
        hashed_course, hashed_said = course_of(schedule)
    assert hashed_course == plain_course
    assert hashed_said != said, "the words have been replaced"


def course_of(schedule: Schedule) -> tuple[object, list[str]]:
    """Return what a job was decided on, event by event, and how it ended; and all that was said."""
    decisions: list[object] = []
    decided, begins = Judge.decided, Judge.launch_begins

    def see_decision(judge: Judge, settings: Settings, status: JobStatus, event: Event, decision: Decision) -> None:
        decisions.append((event, decision, decision.exit_code if isinstance(decision, End) else None))
        decided(judge, settings, status, event, decision)

    def see_launch(judge: Judge, *launch: Any) -> None:
        decisions.append(launch)
        begins(judge, *launch)

    with simulated_world() as directory, ExitStack() as stack:
        stack.enter_context(patch.object(Judge, "decided", see_decision))
        stack.enter_context(patch.object(Judge, "launch_begins", see_launch))
        outcome = run(3, directory, schedule)
    course = [PID.sub("pid", repr(each)) for each in decisions]
    return (outcome.failure, outcome.exit_code, outcome.events, course), outcome.trace


FAILURE = Failure("node3", 5, 7, 1, 1, T0 + 500, 190.0, "KeyError: 'x'", "an error", "program", "1")
HANG = ProgramHung(
    61.0, Silent("node3", 5), Standstill((Standing("stuck", "load (data.py:4)", 1, "node3", 5),)), "node3"
)
FOUND = Found("node3", (Finding("memory errors", "0", 2),))
LOST = NodeLost("node3", WhyLost("ended"), NodeWord("Slurm", "node3", "down", "rain"))


def eventful() -> list[Entry]:
    """Return the journal of a job with a slow device, a failure, a hang and a lost node."""
    *before, last = entries()
    began = [entry for entry in before if not isinstance(entry.record, LaunchEnded) or entry.record.launch == 0]
    third = LaunchBegan(2, ("node1", "node3"), (), "node1", Gap(1.0, 0.5, 2.0))
    return [
        *began,
        Entry(T0 + 500, FailureFound(FAILURE, (FOUND,))),
        Entry(T0 + 500, LaunchEnded(1, (FAILURE, FOUND, NodeEvidence("node3", 12.5, 2, 2), Change()), "failure", 2.0)),
        Entry(T0 + 510, third),
        Entry(T0 + 570, HangFound(2, HANG, "stacks-2.txt")),
        Entry(T0 + 570, LaunchEnded(2, (Fact("hangs"), HANG, Change()), "hang")),
        Entry(T0 + 575, replace(third, launch=3)),
        Entry(T0 + 590, LaunchEnded(3, (LOST, Change(without=("node3",), alone="node1")), "node lost")),
        replace(last, record=JobEnded(69, ("node2", "node3"))),
    ]


def test_every_record_of_a_journal_is_read_back_as_it_was() -> None:
    for entry in eventful():
        assert Entry.from_json(entry.to_json()) == entry
        assert record_of(type(entry.record), plain(entry.record)) == entry.record


def test_a_report_counts_the_same_with_hashes_for_words(tmp_path: Path) -> None:
    worded, page, told = report_of(tmp_path / "words")
    with hashed():
        in_hashes, hashed_page, hashed_told = report_of(tmp_path / "hashes")
    assert in_hashes == worded
    assert (hashed_page != page, hashed_told != told) == (True, True), "the words have been replaced"
    assert len(hashed_told) == len(told), "the same losses are told of"


def report_of(folder: Path) -> tuple[tuple[Timeline, Costs, object, object], str, list[str]]:
    """Return what a report is made of, its page, and the story."""
    write_record(folder)
    (folder / JOURNAL_FILE).write_text("".join(f"{entry.to_json()}\n" for entry in eventful()))
    timeline = timeline_of_entries(read_journal(folder / JOURNAL_FILE))
    inputs = read_inputs(folder)
    costs = costs_of(timeline)
    shown = timeline.events
    dumped = events_of_series(series_of_events(shown))
    of_dump = [(event.kind, event.launch, event.nodes, event.severity, event.action) for event in dumped]
    snapshot = compose(timeline, Readings(), T0 + LENGTH_S, level=0, port=0)
    roles = [(node.host, node.role) for node in snapshot.nodes], [each.verdict for each in snapshot.devices]
    page = write_report(inputs, folder).read_text()
    # The timeline has lines of the log in words, as they are shown; everything else in it is the same.
    log = tuple(replace(line, text="") for line in timeline.log)
    found = (replace(timeline, log=log, events=()), costs, (list(accused(shown)), of_dump), roles)
    return found, page, story(timeline, costs.times, running=False)
