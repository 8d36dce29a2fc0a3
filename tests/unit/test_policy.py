"""The restart policy as a table: what happened, and what to do about it."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from laggard.resilience.decision import wording
from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import (
    EXIT_NO_PROGRESS,
    EXIT_TOO_FEW_NODES,
    Decision,
    End,
    Event,
    JobStatus,
    NodeJoined,
    NodeLost,
    NodeReturned,
    NodesAccused,
    ProgramEnded,
    ProgramFailed,
    ProgramHung,
    Relaunch,
    Report,
    Settings,
)
from laggard.resilience.decision.evidence import Finding, Found
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.ledger import Incident
from laggard.resilience.decision.policy import LIMITS, TOO_FEW, decide
from laggard.resilience.decision.reasons import Change, WhyLost
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.row import Course
from laggard.resilience.decision.rules import RULES
from laggard.resilience.reading.signatures import Kind
from tests.decided import Ended, ended

PLAIN = Settings(nodes=2)
RESILIENT = Settings(nodes=2, resilient=True)
EXHAUSTING = Settings(nodes=2, resilient=True, exhaust_resources=True)

NOW_S = 1e9


def out(*hosts: str, lost: bool = False) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(host, NOW_S, lost) for host in hosts)


THREE = Roster(("n1", "n2"), ("n3",))
TWO = Roster(("n1", "n3"), (), out("n2"))
ALONE = Roster(("n1",), (), out("n2", "n3"))
KEEPS_BOOKS = Roster(("n3",), (), out("n2", "n1"), primary="n1")


def accused(*hosts: str) -> NodesAccused:
    return NodesAccused(frozenset(hosts))


def failed(
    host: str = "n2", kind: Kind = "unknown", *, exit_code: int = 1, fingerprint: str = "odd", is_usage: bool = False
) -> ProgramFailed:
    return ProgramFailed(
        Failure(
            host=host,
            rank=5,
            pid=4211,
            exit_code=exit_code,
            job_exit_code=exit_code if exit_code > 0 else 128 - exit_code,
            ended_s=NOW_S,
            ran_s=724.0,
            quote="",
            cause="",
            kind=kind,
            fingerprint=fingerprint,
            is_usage=is_usage,
        )
    )


def lost_gpu(host: str, gpu: str) -> Found:
    return Found(host, (Finding("gpu lost", gpu),))


SENTENCE = "rank 5 on n2 exited with 1 after 12 min 4 s"


@dataclass(frozen=True)
class Go:
    """Relaunch on this roster."""

    roster: Roster
    reason: str
    new_cluster: bool = False


@dataclass(frozen=True)
class Stay:
    """Report, and go on with this roster."""

    roster: Roster
    reason: str


TABLE: list[tuple[str, Settings, Roster, Event, Ended | Go | Stay]] = [
    (
        "a program that ends well ends the job",
        EXHAUSTING,
        THREE,
        ProgramEnded(),
        Ended(0, "the program ended with exit code 0"),
    ),
    (
        "a slow node is replaced by the reserve",
        RESILIENT,
        THREE,
        accused("n2"),
        Go(Roster(("n1", "n3"), (), out("n2")), "without n2; n3 comes in from the reserve"),
    ),
    (
        "without --exhaust-resources too few nodes end the job",
        RESILIENT,
        TWO,
        accused("n3"),
        Ended(69, "1 good node is left for --nodes=2; with --exhaust-resources the job would go on with fewer"),
    ),
    (
        "with --exhaust-resources the primary goes on alone",
        EXHAUSTING,
        TWO,
        accused("n3"),
        Go(ALONE, "without n3; n1 goes on alone"),
    ),
    (
        "a slow primary goes on as a head-only node, and the reserve takes its place",
        RESILIENT,
        THREE,
        accused("n1"),
        Go(
            Roster(("n2", "n3"), (), out("n1"), primary="n1"),
            "without the devices of n1 (the primary); n3 comes in from the reserve",
            new_cluster=True,
        ),
    ),
    (
        "a slow primary is reported and kept where there is no other node",
        RESILIENT,
        TWO,
        accused("n1"),
        Stay(TWO, "no other node could take the place of n1; with --exhaust-resources the job would go on without it"),
    ),
    (
        "with --exhaust-resources a job of two nodes goes on without the devices of its primary",
        EXHAUSTING,
        TWO,
        accused("n1"),
        Go(KEEPS_BOOKS, "without the devices of n1 (the primary); n3 goes on alone", new_cluster=True),
    ),
    (
        "a primary that is the only node left is used whatever its devices are",
        EXHAUSTING,
        ALONE,
        accused("n1"),
        Stay(ALONE, "no other node could take the place of n1"),
    ),
    (
        "a head-only node's devices are used again before there are none",
        EXHAUSTING,
        KEEPS_BOOKS,
        accused("n3"),
        Go(
            Roster(("n1",), (), out("n2", "n3"), out("n1")),
            "without n3; the devices of n1 (the primary) are used again; n1 goes on alone",
            new_cluster=True,
        ),
    ),
    (
        "a head-only node's devices are used again before the job ends",
        RESILIENT,
        Roster(("n2", "n3"), (), out("n1"), primary="n1"),
        NodeLost("n3", WhyLost("ended")),
        Go(
            Roster(("n1", "n2"), (), out("n3", lost=True), out("n1")),
            "n3 is lost (its agent has ended); without n3; the devices of n1 (the primary) are used again",
            new_cluster=True,
        ),
    ),
    (
        "a head-only node that is accused once more stays what it is",
        EXHAUSTING,
        KEEPS_BOOKS,
        accused("n1"),
        Stay(KEEPS_BOOKS, "no accused node is in use"),
    ),
    (
        "a head-only node whose agent is lost is started anew, on a new cluster",
        EXHAUSTING,
        KEEPS_BOOKS,
        NodeLost("n1"),
        Go(KEEPS_BOOKS, "n1 is lost; on the same nodes", new_cluster=True),
    ),
    (
        "a slow primary and another slow node with one in reserve: the other one is replaced",
        RESILIENT,
        THREE,
        accused("n1", "n2"),
        Go(Roster(("n1", "n3"), (), out("n2")), "without n2; n3 comes in from the reserve"),
    ),
    (
        "a slow primary and another slow node with --exhaust-resources: neither is used",
        EXHAUSTING,
        THREE,
        accused("n1", "n2"),
        Go(
            Roster(("n3",), (), out("n1", "n2"), primary="n1"),
            "without n2, the devices of n1 (the primary); n3 comes in from the reserve; n3 goes on alone",
            new_cluster=True,
        ),
    ),
    (
        "devices are left out only where others are left",
        EXHAUSTING,
        replace(TWO, with_devices=frozenset({"n1", "n2"})),
        accused("n1"),
        Stay(replace(TWO, with_devices=frozenset({"n1", "n2"})), "no other node could take the place of n1"),
    ),
    (
        "a job of one node keeps it, and fewer nodes would not do",
        replace(RESILIENT, nodes=1),
        Roster(("n1",)),
        accused("n1"),
        Stay(Roster(("n1",)), "no other node could take the place of n1"),
    ),
    (
        "a program that had devices is not launched where there are none",
        EXHAUSTING,
        Roster(("n1", "n2"), with_devices=frozenset({"n2"})),
        NodeLost("n2"),
        Go(
            Roster(("n1",), (), out("n2", lost=True), with_devices=frozenset({"n2"})),
            "n2 is lost; without n2; waiting up to 5 min 0 s for n2 to return",
        ),
    ),
    (
        "nor is it waited for a node that is not lost",
        replace(EXHAUSTING, wait_for_nodes_s=0.0),
        Roster(("n1", "n2"), with_devices=frozenset({"n2"})),
        NodeLost("n2"),
        Ended(69, "no node with devices is left: n1 cannot run the program"),
    ),
    (
        "the last node that can run the program is kept, slow or not",
        EXHAUSTING,
        Roster(("n2",), (), (), primary="n1"),
        accused("n2"),
        Stay(Roster(("n2",), (), (), primary="n1"), "no other node could take the place of n2"),
    ),
    (
        "a program is not launched on a primary that cannot run it",
        replace(EXHAUSTING, wait_for_nodes_s=0.0),
        Roster(("n2",), (), (), primary="n1"),
        NodeLost("n2"),
        Ended(69, "no node is left to run the program: the primary, n1, has no processors or GPUs for it"),
    ),
    (
        "without --resilient a slow node is only reported",
        PLAIN,
        THREE,
        accused("n2"),
        Stay(THREE, "without --resilient nothing is relaunched"),
    ),
    (
        "a node that is excluded already cannot be accused again",
        EXHAUSTING,
        TWO,
        accused("n2"),
        Stay(TWO, "no accused node is in use"),
    ),
    (
        "an accused reserve node is not used later",
        EXHAUSTING,
        THREE,
        accused("n3"),
        Stay(Roster(("n1", "n2"), (), out("n3")), "removed from the reserve"),
    ),
    (
        "a program that asks for a relaunch without naming a node gets the same nodes",
        RESILIENT,
        THREE,
        accused(),
        Go(THREE, "on the same nodes"),
    ),
    (
        "a spare node that is found bad when the others are checked is not swapped in",
        Settings(nodes=2, resilient=True),
        Roster(("n1", "n2"), ("n3", "n4")),
        ProgramFailed(failed().failure, (lost_gpu("n2", "1"), lost_gpu("n3", "0"))),
        Go(
            Roster(("n1", "n4"), (), out("n2", "n3")),
            f"{SENTENCE}; n2: gpu 1 is lost; n3: gpu 0 is lost; without n2; n4 comes in from the reserve",
        ),
    ),
    (
        "a bad spare node is excluded although the nodes in use stay",
        RESILIENT,
        THREE,
        ProgramFailed(failed().failure, (lost_gpu("n3", "0"),)),
        Go(Roster(("n1", "n2"), (), out("n3")), f"{SENTENCE}; n3: gpu 0 is lost; on the same nodes"),
    ),
    (
        "a lost active node is replaced",
        RESILIENT,
        THREE,
        NodeLost("n2", WhyLost("silent", 3.7)),
        Go(
            Roster(("n1", "n3"), (), out("n2", lost=True)),
            "n2 is lost (no heartbeat for 3.7 s); without n2; n3 comes in from the reserve",
        ),
    ),
    (
        "a lost Ray head is replaced by a new cluster on the same nodes",
        EXHAUSTING,
        THREE,
        NodeLost("n1"),
        Go(THREE, "n1 is lost; on the same nodes", new_cluster=True),
    ),
    (
        "a lost Ray head without --resilient ends the job",
        PLAIN,
        THREE,
        NodeLost("n1"),
        Ended(69, "node n1 is lost; --resilient would relaunch without it"),
    ),
    (
        "a lost node of the reserve does not disturb the program",
        RESILIENT,
        THREE,
        NodeLost("n3"),
        Stay(Roster(("n1", "n2"), (), out("n3", lost=True)), "n3 is lost, but was not in use"),
    ),
    (
        "a node that is lost while it is excluded stays in quarantine",
        RESILIENT,
        TWO,
        NodeLost("n2"),
        Stay(TWO, "n2 is lost, but was not in use"),
    ),
    (
        "a lost node without --resilient ends the job",
        PLAIN,
        THREE,
        NodeLost("n2"),
        Ended(69, "node n2 is lost; --resilient would relaunch without it"),
    ),
    (
        "a lost node is left to a program that restarts its own workers, and the reserve stays: it is not in Ray",
        RESILIENT,
        THREE,
        NodeLost("n2", recovers=True),
        Stay(Roster(("n1",), ("n3",), out("n2", lost=True)), "n2 is lost; the program restarts its workers by itself"),
    ),
    (
        "and without --resilient too",
        PLAIN,
        THREE,
        NodeLost("n2", recovers=True),
        Stay(Roster(("n1",), ("n3",), out("n2", lost=True)), "n2 is lost; the program restarts its workers by itself"),
    ),
    (
        "but not the primary, with Ray's head",
        RESILIENT,
        THREE,
        NodeLost("n1", recovers=True),
        Go(THREE, "n1 is lost; on the same nodes", new_cluster=True),
    ),
    (
        "nor the last node in use",
        replace(RESILIENT, nodes=1),
        Roster(("n2",), ("n3",), primary="n1"),
        NodeLost("n2", recovers=True),
        Go(
            Roster(("n3",), (), out("n2", lost=True), primary="n1"),
            "n2 is lost; without n2; n3 comes in from the reserve; n3 goes on alone",
        ),
    ),
    (
        "a slow node is left to such a program as well",
        RESILIENT,
        THREE,
        NodesAccused(frozenset({"n2"}), recovers=True),
        Stay(THREE, "the program restarts its workers by itself"),
    ),
    (
        "a program that fails is relaunched on the same nodes, and nobody is blamed for a network that was away",
        RESILIENT,
        THREE,
        failed(),
        Go(THREE, f"{SENTENCE}; on the same nodes"),
    ),
    (
        "a node that was found bad after a failure is replaced at once",
        RESILIENT,
        THREE,
        ProgramFailed(failed().failure, (lost_gpu("n2", "1"),)),
        Go(
            Roster(("n1", "n3"), (), out("n2")),
            f"{SENTENCE}; n2: gpu 1 is lost; without n2; n3 comes in from the reserve",
        ),
    ),
    (
        "a primary that was found bad goes on without its devices",
        RESILIENT,
        THREE,
        ProgramFailed(failed().failure, (lost_gpu("n1", "1"),)),
        Go(
            Roster(("n2", "n3"), (), out("n1"), primary="n1"),
            f"{SENTENCE}; n1: gpu 1 is lost; without the devices of n1 (the primary); n3 comes in from the reserve",
            new_cluster=True,
        ),
    ),
    (
        "a primary that was found bad stays where there is no other node, and is named",
        RESILIENT,
        TWO,
        ProgramFailed(failed().failure, (lost_gpu("n1", "1"),)),
        Go(TWO, f"{SENTENCE}; n1: gpu 1 is lost; on the same nodes"),
    ),
    (
        "wrong arguments end the job whatever a check finds",
        RESILIENT,
        THREE,
        ProgramFailed(failed(exit_code=2, is_usage=True).failure, (lost_gpu("n2", "1"),)),
        Ended(2, "rank 5 on n2 exited with 2 after 12 min 4 s; the error is the program's own"),
    ),
    (
        "a bad node without a replacement ends the job",
        RESILIENT,
        Roster(("n1", "n2")),
        ProgramFailed(failed().failure, (lost_gpu("n2", "1"),)),
        Ended(
            69,
            "1 good node is left for --nodes=2; with --exhaust-resources the job would go on with fewer; "
            f"the last failure: {SENTENCE}",
        ),
    ),
    (
        "an error of the program's own is tried once more",
        RESILIENT,
        THREE,
        failed(kind="program"),
        Go(THREE, f"{SENTENCE} (program: ); on the same nodes"),
    ),
    (
        "wrong arguments end the job at once",
        EXHAUSTING,
        THREE,
        failed(exit_code=2, is_usage=True),
        Ended(2, "rank 5 on n2 exited with 2 after 12 min 4 s; the error is the program's own"),
    ),
    (
        "with --on-failure=end a failure ends the job",
        replace(RESILIENT, on_failure="end"),
        THREE,
        failed(exit_code=-6),
        Ended(134, "rank 5 on n2 was killed by SIGABRT after 12 min 4 s"),
    ),
    (
        "without --resilient a failure ends the job",
        PLAIN,
        THREE,
        failed(exit_code=-11),
        Ended(139, "rank 5 on n2 was killed by SIGSEGV after 12 min 4 s; --resilient would relaunch it"),
    ),
    (
        "without --resilient the program's own error ends the job, and --resilient would not help",
        PLAIN,
        THREE,
        failed(exit_code=2, is_usage=True),
        Ended(2, "rank 5 on n2 exited with 2 after 12 min 4 s"),
    ),
    (
        "a program that hangs is relaunched on the same nodes",
        RESILIENT,
        THREE,
        ProgramHung(61.2),
        Go(THREE, "the program hangs: no sign of life for 61 s; on the same nodes"),
    ),
    (
        "a program that hangs is reported without --resilient",
        PLAIN,
        THREE,
        ProgramHung(61.2),
        Stay(THREE, "no sign of life for 61 s; --resilient would relaunch it"),
    ),
    (
        "a node that has joined is examined before it is in the reserve",
        RESILIENT,
        THREE,
        NodeJoined("n4", has_devices=True),
        Stay(Roster(("n1", "n2"), ("n3",), out("n4", lost=True)), "n4 has joined the cluster: it is examined first"),
    ),
    (
        "a node with devices that has joined a job that needs some is one of those that will do",
        RESILIENT,
        replace(THREE, with_devices=frozenset({"n1"})),
        NodeJoined("n4", has_devices=True),
        Stay(
            Roster(("n1", "n2"), ("n3",), out("n4", lost=True), with_devices=frozenset({"n1", "n4"})),
            "n4 has joined the cluster: it is examined first",
        ),
    ),
    (
        "a node without devices that has joined such a job is none of them",
        RESILIENT,
        replace(THREE, with_devices=frozenset({"n1"})),
        NodeJoined("n4", has_devices=False),
        Stay(
            Roster(("n1", "n2"), ("n3",), out("n4", lost=True), with_devices=frozenset({"n1"})),
            "n4 has joined the cluster: it is examined first",
        ),
    ),
]


@pytest.mark.parametrize(
    ("settings", "roster", "event", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_policy(settings: Settings, roster: Roster, event: Event, expected: Ended | Go | Stay) -> None:
    decision = after(settings, JobStatus(roster, NOW_S), event)
    if isinstance(decision, Relaunch):
        assert Go(decision.status.roster, wording.reason(decision.reason), decision.new_cluster) == expected
    elif isinstance(decision, Report):
        assert Stay(decision.status.roster, wording.reason(decision.reason)) == expected
    else:
        assert ended(decision) == expected


def after(
    settings: Settings, status: JobStatus, event: Event, *, now_s: float = NOW_S, progressed: bool = True
) -> Decision:
    return decide(settings, status, event, now_s=now_s, progressed=progressed)


def relaunched(
    settings: Settings,
    status: JobStatus,
    *moments_s: float,
    progressed: bool = True,
    event: Event | None = None,
) -> Decision:
    """Let the program be relaunched at each of these moments; return the last decision."""
    for now_s in moments_s:
        decision = after(settings, status, event or accused(), now_s=now_s, progressed=progressed)
        if isinstance(decision, Relaunch):
            status = decision.status
    return decision


def test_the_main_job_takes_three_launches_and_two_exclusions() -> None:
    """Slow node after slow node, down to the primary: the run that the README shows."""
    status = JobStatus(THREE, NOW_S)
    for host in ("n2", "n3"):
        decision = after(EXHAUSTING, status, accused(host))
        assert isinstance(decision, Relaunch)
        status = decision.status
    assert (len(status.relaunched_s), status.roster) == (2, ALONE)
    assert ended(after(EXHAUSTING, status, ProgramEnded())) == Ended(0, "the program ended with exit code 0")


@pytest.mark.parametrize("event", [ProgramHung(60), failed(), accused(), NodeLost("n1")])
def test_a_job_ends_after_two_hours_without_progress_whatever_ended_its_launches(event: Event) -> None:
    first = after(RESILIENT, JobStatus(THREE, NOW_S - 60), event, progressed=False)
    assert isinstance(first, Relaunch)
    assert first.status.stalled_since_s == NOW_S
    still = after(RESILIENT, first.status, event, now_s=NOW_S + 7199, progressed=False)
    assert isinstance(still, Relaunch)
    assert still.status.stalled_since_s == NOW_S
    over = after(RESILIENT, still.status, event, now_s=NOW_S + 7200, progressed=False)
    assert isinstance(over, End)
    assert over.exit_code == 93
    assert wording.reason(over.reason).startswith(
        "no progress for 2 h 0 min: no commit to State, no step reported (--give-up-after)"
    )
    with_progress = after(RESILIENT, still.status, event, now_s=NOW_S + 7200, progressed=True)
    assert isinstance(with_progress, Relaunch)
    assert with_progress.status.stalled_since_s == NOW_S + 7200


def test_a_job_without_progress_says_what_the_last_failure_was() -> None:
    end = after(RESILIENT, JobStatus(THREE, NOW_S, stalled_since_s=NOW_S - 7200), failed(), progressed=False)
    assert isinstance(end, End)
    assert wording.reason(end.reason).endswith(f"; the last failure: {SENTENCE}")
    assert end.exit_code == 93


def in_a_row(settings: Settings, *events: ProgramFailed, apart_s: float = 30.0) -> Decision:
    """Let the program fail again and again without progress; return the last decision."""
    status, now_s = JobStatus(THREE, NOW_S), NOW_S
    for event in events:
        decision = after(settings, status, event, now_s=now_s, progressed=False)
        if isinstance(decision, Relaunch):
            status = replace(decision.status, launched_s=now_s)
        now_s += apart_s
    return decision


def test_the_same_error_on_two_nodes_that_nobody_passed_is_the_programs() -> None:
    on_two_nodes = [failed(host, "program", exit_code=3) for host in ("n2", "n1", "n2")]
    assert isinstance(in_a_row(RESILIENT, *on_two_nodes[:2]), Relaunch)
    assert ended(in_a_row(RESILIENT, *on_two_nodes)) == Ended(
        3,
        "rank 5 on n2 exited with 3 after 12 min 4 s (program: ); "
        "the program: 3 failures without progress, the last two at the same place",
    )


def test_what_ranks_gave_each_other_is_the_programs_the_third_time_and_moves_and_strikes_nobody() -> None:
    settings = replace(RESILIENT, places_ranks=True)
    event = ProgramFailed(replace(failed("n2", "program").failure, is_shared=True))
    second = in_a_row(settings, event, event)
    assert isinstance(second, Relaunch)
    assert (second.status.ledger, second.status.placed.active) == ((), ("n1", "n2"))
    third = in_a_row(settings, event, event, event)
    assert ended(third).reason.endswith("the program: 3 failures without progress, the last two at the same place")


def test_once_it_is_the_programs_the_failures_of_the_row_speak_against_no_node_and_earlier_ones_still_do() -> None:
    before = Incident("n1", NOW_S - 60.0, 4.0)
    status = replace(JobStatus(THREE, NOW_S), ledger=(before,))
    for number, host in enumerate(("n2", "n1", "n2")):
        now_s = NOW_S + 30.0 * number
        decision = after(RESILIENT, status, failed(host, "program"), now_s=now_s, progressed=False)
        assert decision.status is not None
        status = replace(decision.status, launched_s=now_s)
    assert isinstance(decision, End)
    assert [(each.host, each.stake) for each in status.ledger] == [("n1", 4.0), ("n2", 0.0), ("n1", 0.0)]


@pytest.mark.parametrize(
    "events",
    [
        [failed("n2", "program"), failed("n2", "program"), failed("n2", "program")],  # it may be the node
        [failed("n2", "network"), failed("n1", "network"), failed("n2", "network")],
        [failed("n2"), failed("n1"), failed("n2", fingerprint="elsewhere")],
        [replace(failed(host, "program"), course=Course(passed=True)) for host in ("n2", "n1", "n2")],
        [replace(failed(host), course=Course(is_early=True)) for host in ("n2", "n1", "n2")],
    ],
)
def test_what_may_be_a_node_an_outage_or_a_save_is_relaunched(events: list[ProgramFailed]) -> None:
    assert isinstance(in_a_row(replace(RESILIENT, places_ranks=True), *events, apart_s=20.0), Relaunch)


def test_a_start_that_fails_with_unknown_words_is_the_programs_after_a_minute_or_twenty() -> None:
    new = [replace(failed(host), course=Course(is_early=True)) for host in ("n2", "n1", "n2")]
    assert isinstance(in_a_row(RESILIENT, *new, apart_s=29.9), Relaunch)
    assert isinstance(in_a_row(RESILIENT, *new, apart_s=30.0), End)
    known = [replace(each, course=Course(is_early=True, ever_progressed=True)) for each in new]
    assert isinstance(in_a_row(RESILIENT, *known, apart_s=599.0), Relaunch)
    assert isinstance(in_a_row(RESILIENT, *known, apart_s=600.0), End)


def test_what_runs_on_the_primary_in_any_case_is_the_programs_at_the_third_time() -> None:
    stays = ProgramFailed(replace(failed("n1", "program").failure, stays=True))
    assert isinstance(in_a_row(RESILIENT, stays, stays), Relaunch)
    assert isinstance(in_a_row(RESILIENT, stays, stays, stays), End)


def test_a_program_that_is_not_placed_by_us_goes_on_without_the_node_on_which_it_failed_twice() -> None:
    crashed = failed(exit_code=-11)
    first = in_a_row(RESILIENT, crashed)
    assert isinstance(first, Relaunch)
    assert first.status.roster == THREE
    second = in_a_row(RESILIENT, crashed, crashed)
    assert isinstance(second, Relaunch)
    assert second.status.roster == Roster(("n1", "n3"), ("n2",))
    assert wording.reason(second.reason) == (
        "rank 5 on n2 was killed by SIGSEGV after 12 min 4 s; n2 waits in the reserve; n3 comes in from the reserve; "
        "after a wait of 10.0 s"
    )
    alone = after(EXHAUSTING, JobStatus(Roster(("n1", "n2")), NOW_S, row=second.status.row), crashed, progressed=False)
    assert isinstance(alone, Relaunch)
    assert alone.status.roster == Roster(("n1",), ("n2",))


def test_a_node_that_failures_follow_over_drawn_places_is_left_out_and_the_rest_stays() -> None:
    settings = Settings(nodes=8, resilient=True, exhaust_resources=True, places_ranks=True)
    many = Roster(tuple(f"n{number}" for number in range(1, 9)))
    status = JobStatus(many, NOW_S)
    for number in range(1, 6):
        assert "n5" in status.roster.active
        decision = after(settings, status, failed("n5"), now_s=NOW_S + number)
        assert isinstance(decision, Relaunch)
        status = decision.status
    assert status.roster.active == ("n1", "n2", "n3", "n4", "n6", "n7", "n8")
    assert isinstance(decision, Relaunch)
    assert wording.reason(decision.reason) == (
        "rank 5 on n5 exited with 1 after 12 min 4 s; "
        "n5: 5 failures followed it over 5 placements, evidence 571; without n5"
    )
    assert decision.wait_s == 0


def test_with_exhaust_resources_nobody_is_left_out_while_the_failure_stays_with_a_rank() -> None:
    settings = Settings(nodes=4, resilient=True, exhaust_resources=True, places_ranks=True, max_restarts_per_hour=1000)
    chance = random.Random(5)
    status = JobStatus(Roster(("n1", "n2", "n3", "n4")), NOW_S)
    for number in range(1, 100):
        host = status.placed.active[2]
        decision = decide(settings, status, failed(host), now_s=NOW_S + number, progressed=True, below=chance.randrange)
        assert isinstance(decision, Relaunch)
        status = decision.status
    assert len(status.roster.active) == 4


def test_a_failure_on_several_nodes_at_once_speaks_against_nobody() -> None:
    several = ProgramFailed(replace(failed().failure, hosts=("n1", "n2")))
    decision = after(replace(RESILIENT, places_ranks=True), JobStatus(THREE, NOW_S), several)
    assert isinstance(decision, Relaunch)
    assert (decision.status.ledger, decision.status.placement.order) == ((), ())


def test_a_second_loss_within_a_day_is_enough_and_losses_of_several_nodes_at_once_count_once() -> None:
    status = JobStatus(Roster(("n1", "n2"), ("n3", "n4")), NOW_S)
    for host, at_s in (("n2", 0), ("n3", 599)):
        decision = after(RESILIENT, status, NodeLost(host), now_s=NOW_S + at_s)
        assert isinstance(decision, Relaunch)
        status = decision.status
    assert [each.stake for each in status.ledger] == [50, 0]
    back = after(RESILIENT, status, NodeReturned("n2"), now_s=NOW_S + 700)
    assert isinstance(back, Report)
    again = after(RESILIENT, back.status, NodeLost("n2"), now_s=NOW_S + 86_399)
    assert isinstance(again, Report)
    stays_out = after(RESILIENT, again.status, NodeReturned("n2"), now_s=NOW_S + 86_399)
    assert isinstance(stays_out, Report)
    assert "n2" not in stays_out.status.roster.reserve
    a_day_later = after(RESILIENT, again.status, NodeReturned("n2"), now_s=NOW_S + 86_400)
    assert isinstance(a_day_later, Report)
    assert "n2" in a_day_later.status.roster.reserve


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (accused(), Change()),
        (accused("n2"), Change(without=("n2",), came=("n3",))),
        (accused("n1", "n2"), Change(("n2",), ("n3",), primary="n1", alone="n3")),
        (accused("n2", "n3"), Change(("n2",), alone="n1")),
    ],
)
def test_a_relaunch_names_what_changes_and_nothing_else(event: Event, change: Change) -> None:
    decision = after(EXHAUSTING, JobStatus(THREE, NOW_S), event)
    assert isinstance(decision, Relaunch)
    assert decision.reason[-1] == change


def test_an_error_after_which_the_job_made_progress_is_remembered_as_one_that_it_survives() -> None:
    status = JobStatus(THREE, NOW_S)
    for number, progressed in enumerate((True, True, False, False)):
        decision = after(RESILIENT, status, failed(), now_s=NOW_S + number, progressed=progressed)
        assert isinstance(decision, Relaunch)
        status = decision.status
        assert bool(status.survived) == (number > 0)


def test_nothing_is_waited_for_while_failures_follow_a_node_over_drawn_places() -> None:
    settings = replace(RESILIENT, places_ranks=True, nodes=3)
    status, waits_s = JobStatus(THREE, NOW_S), []
    for age_s in range(0, 1200, 200):
        decision = after(settings, status, failed("n2"), now_s=NOW_S + age_s, progressed=False)
        assert isinstance(decision, Relaunch)
        waits_s.append(decision.wait_s)
        status = decision.status
    assert waits_s == [0, 50, 10, 10, 10, 10]


def test_relaunches_wait_for_a_quarter_of_the_time_without_progress_and_at_most_five_minutes() -> None:
    patient = replace(RESILIENT, max_restarts_per_hour=1000)
    status, waits_s = JobStatus(THREE, NOW_S), []
    for age_s in (0, 20, 60, 200, 1000, 1200, 7000):
        decision = after(patient, status, failed(), now_s=NOW_S + age_s, progressed=False)
        assert isinstance(decision, Relaunch)
        waits_s.append(decision.wait_s)
        status = decision.status
    assert waits_s == [0, 10, 15, 50, 250, 300, 300]
    assert wording.reason(decision.reason).endswith("; after a wait of 5 min 0 s")
    progress = after(patient, status, failed())
    assert isinstance(progress, Relaunch)
    assert progress.wait_s == 0
    away = after(patient, status, failed(kind="network"))
    assert isinstance(away, Relaunch)
    assert away.wait_s == 10


def test_the_budget_of_restarts_ends_the_job() -> None:
    two = replace(RESILIENT, max_restarts=2)
    begun = JobStatus(THREE, NOW_S)
    assert isinstance(relaunched(two, begun, NOW_S, NOW_S), Relaunch)
    assert ended(relaunched(two, begun, NOW_S, NOW_S, NOW_S)) == Ended(93, "--max-restarts=2 is used up")


def test_a_storm_of_restarts_ends_the_job_and_the_same_number_over_hours_does_not() -> None:
    calm = replace(RESILIENT, max_restarts_per_hour=2)
    begun = JobStatus(THREE, NOW_S)
    storm = relaunched(calm, begun, NOW_S, NOW_S + 1000, NOW_S + 3599)
    assert ended(storm) == Ended(93, "--max-restarts-per-hour=2 is used up")
    assert isinstance(relaunched(calm, begun, NOW_S, NOW_S + 1000), Relaunch)
    assert isinstance(relaunched(calm, begun, NOW_S, NOW_S + 1000, NOW_S + 3600), Relaunch)


def test_sixty_restarts_an_hour_are_allowed_unless_the_user_says_otherwise() -> None:
    begun = JobStatus(THREE, NOW_S)
    assert isinstance(relaunched(RESILIENT, begun, *[NOW_S] * 60), Relaunch)
    assert ended(relaunched(RESILIENT, begun, *[NOW_S] * 61)) == Ended(93, "--max-restarts-per-hour=60 is used up")


def test_the_reserve_fills_free_places_in_order_and_no_more() -> None:
    roster = Roster(("n1", "n2"), ("n3", "n4", "n5"))
    assert roster.without(frozenset({"n4"}), 2, NOW_S) == Roster(("n1", "n2"), ("n3", "n5"), out("n4"))
    assert roster.without(frozenset({"n2"}), 2, NOW_S) == Roster(("n1", "n3"), ("n4", "n5"), out("n2"))
    assert roster.without(frozenset({"n2"}), 1, NOW_S) == Roster(("n1",), ("n3", "n4", "n5"), out("n2"))
    assert (roster.primary, roster.excluded_hosts) == ("n1", ())


def test_a_job_begins_without_the_nodes_that_the_jobs_before_it_excluded() -> None:
    hosts = ("n1", "n2", "n3")
    assert begin(RESILIENT, hosts, [], NOW_S) == JobStatus(THREE, NOW_S)
    assert begin(RESILIENT, hosts, out("n2"), NOW_S) == JobStatus(TWO, NOW_S)
    assert begin(RESILIENT, hosts, out("n2", "elsewhere"), NOW_S) == JobStatus(TWO, NOW_S)
    assert begin(EXHAUSTING, hosts, out("n2", "n3"), NOW_S) == JobStatus(ALONE, NOW_S)


def test_a_job_begins_without_the_devices_of_a_primary_that_is_remembered_as_slow_unless_they_are_needed() -> None:
    hosts = ("n1", "n2", "n3")
    keeps_books = Roster(("n2", "n3"), (), out("n1"), primary="n1")
    assert begin(RESILIENT, hosts, out("n1"), NOW_S) == JobStatus(keeps_books, NOW_S)
    assert begin(RESILIENT, hosts, out("n1", "n2"), NOW_S) == JobStatus(replace(TWO, past=out("n1")), NOW_S)
    assert begin(EXHAUSTING, hosts, out("n2", "n1"), NOW_S) == JobStatus(KEEPS_BOOKS, NOW_S)
    only_primary = frozenset({"n1"})
    begun = begin(EXHAUSTING, hosts, out("n2", "n1"), NOW_S, with_devices=only_primary)
    assert begun == JobStatus(replace(TWO, past=out("n1"), with_devices=only_primary), NOW_S)


def test_a_job_whose_primary_cannot_run_programs_begins_on_the_others() -> None:
    hosts = ("n1", "n2", "n3")
    begun = begin(RESILIENT, hosts, (), NOW_S, head_only=True)
    assert begun == JobStatus(Roster(("n2", "n3"), primary="n1"), NOW_S)
    no_one = "no node is left to run the program: the primary, n1, has no processors or GPUs for it"
    assert ended(begin(EXHAUSTING, ("n1",), (), NOW_S, head_only=True)) == Ended(69, no_one)


def test_a_primary_without_devices_counts_only_where_the_job_began_without_any() -> None:
    begun = begin(replace(EXHAUSTING, nodes=1), ("n1", "n2"), (), NOW_S, with_devices=frozenset({"n2"}))
    assert begun == JobStatus(Roster(("n1",), ("n2",)), NOW_S)


def test_a_primary_that_is_set_aside_comes_back_after_its_quarantine() -> None:
    evidence = tuple(Incident("n1", NOW_S, 99.0) for _ in range(2))
    decision = after(RESILIENT, JobStatus(THREE, NOW_S, ledger=evidence), failed("n1"))
    assert isinstance(decision, Relaunch)
    assert decision.status.roster.active == ("n2", "n3")
    assert decision.status.roster.set_aside == "n1"
    later = after(RESILIENT, decision.status, NodeReturned("n1"), now_s=NOW_S + 86403)
    assert isinstance(later, Report)
    assert later.status.roster.reserve == ("n1",)
    again = after(RESILIENT, later.status, accused("n3"), now_s=NOW_S + 86404)
    assert isinstance(again, Relaunch)
    assert again.status.roster.active == ("n1", "n2")
    assert again.new_cluster


def test_a_job_that_would_begin_on_too_few_nodes_ends_with_69() -> None:
    assert ended(begin(RESILIENT, ("n1", "n2", "n3"), out("n2", "n3"), NOW_S)) == Ended(
        69,
        "1 good node is left for --nodes=2; with --exhaust-resources the job would go on with fewer, "
        "and --quarantine=1 would take n2, n3 back",
    )


def test_an_exclusion_that_ends_the_job_is_remembered() -> None:
    end = after(RESILIENT, JobStatus(TWO, NOW_S), accused("n3"))
    assert isinstance(end, End)
    assert end.status is not None
    assert end.status.roster.excluded_hosts == ("n2", "n3")


def policy_tables() -> str:
    """Return the policy's two tables, from its code."""
    lines = ["| event | when | decision |", "|---|---|---|"]
    for event, rules in RULES.items():
        what, otherwise = (inspect.getdoc(event) or "").splitlines()[0], "always"
        for rule in rules:
            lines.append(f"| {what} | {rule.when or otherwise} | {rule.then} |")
            what, otherwise = "", "otherwise"
    lines += ["", "| a relaunch ends the job when | with |", "|---|---|"]
    ends_with = {TOO_FEW: EXIT_TOO_FEW_NODES}
    lines += [f"| {limit.when} | {ends_with.get(limit, EXIT_NO_PROGRESS)} |" for limit in LIMITS]
    return "\n".join(lines)


def test_the_documentation_shows_the_policy_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "restart.md").read_text()
    assert policy_tables() in text, f"docs/restart.md should contain:\n\n{policy_tables()}"


def test_a_verdict_is_proof_enough_in_the_ledger() -> None:
    decision = after(RESILIENT, JobStatus(THREE, NOW_S), accused("n2"))
    assert isinstance(decision, Relaunch)
    assert [(each.host, each.stake) for each in decision.status.ledger] == [("n2", 100)]


def test_words_that_only_a_bad_node_writes_are_half_of_a_proof() -> None:
    settings = Settings(nodes=4, resilient=True, exhaust_resources=True, places_ranks=True)
    status = JobStatus(Roster(("n1", "n2", "n3", "n4")), NOW_S)
    broken = ProgramFailed(replace(failed(kind="hardware").failure, is_proof=True))
    first = after(settings, status, broken)
    assert isinstance(first, Relaunch)
    assert [each.stake for each in first.status.ledger] == [50]
    second = after(settings, first.status, broken)
    assert isinstance(second, Relaunch)
    assert "n2" not in second.status.roster.active


def test_a_device_changes_places_within_its_node_before_the_node_does() -> None:
    devices = dict.fromkeys(("n1", "n2"), ("0", "1", "2"))
    settings = Settings(nodes=2, resilient=True, places_ranks=True, devices=devices)
    status = JobStatus(Roster(("n1", "n2")), NOW_S)
    event = ProgramFailed(replace(failed().failure, device="1"))
    first = decide(settings, status, event, now_s=NOW_S, progressed=True, below=lambda n: n - 1)
    assert isinstance(first, Relaunch)
    assert first.status.placement.devices == {"n2": ("0", "2", "1")}
    assert first.status.placed.active == ("n1", "n2")
    assert wording.reason(first.reason) == f"{SENTENCE}; on the same nodes; devices of n2 change places"
    second = decide(settings, first.status, event, now_s=NOW_S, progressed=True, below=lambda n: n - 1)
    assert isinstance(second, Relaunch)
    assert second.status.placed.active == ("n2", "n1")
    assert second.status.placement.devices == {"n2": ("0", "1", "2")}
    assert [(each.device, each.stake, each.devices_drawn) for each in second.status.ledger] == [
        ("1", 0.75, {}),
        ("1", 0.75, {"n2": 2}),
    ]


@pytest.mark.parametrize("event", [NodeLost("n3"), accused("n3"), accused()])
def test_a_draw_counts_for_one_launch_alone(event: Event) -> None:
    settings = Settings(nodes=3, resilient=True, exhaust_resources=True, places_ranks=True)
    first = after(settings, JobStatus(Roster(("n1", "n2", "n3", "n4")), NOW_S), failed("n2"))
    assert isinstance(first, Relaunch)
    assert first.status.placement.drawn == {"n2": 3}
    second = after(settings, first.status, event)
    assert isinstance(second, Relaunch)
    assert second.status.placement.drawn == {}
    assert [host for host in second.status.placed.active if host != "n3"] == ["n2", "n1", "n4"]
    third = after(settings, second.status, failed("n2"))
    assert isinstance(third, Relaunch)
    assert third.status.ledger[-1].drawn == {}
