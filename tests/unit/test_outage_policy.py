"""What the policy does about a failure that names something which does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laggard.resilience.decision import wording
from laggard.resilience.decision.events import (
    EXIT_NO_PROGRESS,
    Decision,
    End,
    Event,
    JobStatus,
    NodeLost,
    OutageEnded,
    OutageTooLong,
    ProgramFailed,
    Relaunch,
    Report,
    Settings,
)
from laggard.resilience.decision.evidence import Finding, Found
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.roster import Roster
from laggard.resilience.reading.targets import NoAnswer, Target, Unanswered
from tests.decided import ended

NOW_S = 1e9
SETTINGS = Settings(nodes=2, resilient=True)
STATUS = JobStatus(Roster(("n1", "n2"), ("n3",)), NOW_S - 60)
SERVICE = Target("port", "db.site", 5432)
FAILURE = Failure(
    host="n2",
    rank=3,
    pid=41,
    exit_code=1,
    job_exit_code=1,
    ended_s=NOW_S,
    ran_s=3.0,
    quote="OSError: no store",
    cause="",
    kind="unknown",
    fingerprint="OSError",
)


def unanswered(target: Target = SERVICE, since_s: float = NOW_S) -> Unanswered:
    return Unanswered(target, NoAnswer("refused"), "n2", since_s)


def failed(target: Target = SERVICE, now_s: float = NOW_S) -> ProgramFailed:
    return ProgramFailed(FAILURE, unanswered=unanswered(target, now_s))


def after(
    status: JobStatus, event: Event, now_s: float = NOW_S, *, progressed: bool = False, settings: Settings = SETTINGS
) -> Decision:
    return decide(settings, status, event, now_s=now_s, progressed=progressed)


def waiting(status: JobStatus, event: Event, now_s: float = NOW_S, *, progressed: bool = False) -> JobStatus:
    decision = after(status, event, now_s, progressed=progressed)
    assert isinstance(decision, Relaunch)
    assert decision.status.outage is not None
    return decision.status


def test_the_job_waits_on_the_same_nodes_and_nobody_is_blamed() -> None:
    decision = after(STATUS, failed())
    assert isinstance(decision, Relaunch)
    assert decision.status == replace(
        STATUS, outage=unanswered(), stalled_since_s=NOW_S, launched_s=NOW_S, relaunched_s=(NOW_S,)
    )
    waits_for = wording.waits_for(unanswered())
    assert waits_for.startswith("waits for db.site:5432, refused since ")
    assert waits_for.endswith(", as seen from n2")
    assert wording.reason(decision.reason) == (
        f"{waits_for}; rank 3 on n2 exited with 1 after 3.0 s: OSError: no store"
    )


def test_launches_during_an_outage_count_neither_as_failures_nor_as_launches_without_progress() -> None:
    status, now_s = STATUS, NOW_S
    for _ in range(10):
        status = waiting(status, failed(now_s=now_s), now_s)
        over = after(status, OutageEnded(unanswered(), 30.0), now_s + 30)
        assert isinstance(over, Report)
        assert over.status.outage is None
        assert over.status.launched_s == now_s + 30  # the wait is no part of the next launch
        status, now_s = over.status, now_s + 60
    assert (status.row, status.ledger, status.stalled_since_s) == ((), (), NOW_S)


def test_a_job_without_progress_for_long_is_given_up_also_between_two_outages() -> None:
    again_s = NOW_S + SETTINGS.give_up_after_s
    over = after(waiting(STATUS, failed()), OutageEnded(unanswered(), 7100.0), again_s - 60)
    assert isinstance(over, Report)
    end = after(over.status, failed(now_s=again_s), again_s)
    assert ended(end).exit_code == EXIT_NO_PROGRESS
    assert ended(end).reason.startswith("no progress for 2 h 0 min")
    assert "OSError: no store; waits for db.site:5432, refused since" in ended(end).reason
    status = waiting(over.status, failed(now_s=again_s), again_s, progressed=True)
    assert status.stalled_since_s == again_s


def test_an_outage_that_lasts_too_long_ends_the_job() -> None:
    end = after(waiting(STATUS, failed()), OutageTooLong(unanswered(), 7200.0), NOW_S + 7200)
    assert isinstance(end, End)
    assert end.exit_code == EXIT_NO_PROGRESS


def test_a_node_that_is_lost_meanwhile_does_not_end_the_wait_and_is_no_launch_without_progress() -> None:
    decision = after(waiting(STATUS, failed()), NodeLost("n2"), NOW_S + 5)
    assert isinstance(decision, Relaunch)
    assert decision.status.outage == unanswered()
    assert decision.status.roster.active == ("n1", "n3")
    assert decision.status.relaunched_s == (NOW_S,)


@pytest.mark.parametrize(
    "event",
    [
        replace(failed(), evidence=(Found("n2", (Finding("gpu lost", "0"),)),)),
        replace(failed(), failure=replace(FAILURE, is_usage=True)),
        ProgramFailed(FAILURE),
    ],
)
def test_a_bad_node_wrong_arguments_and_nothing_that_is_away_are_decided_as_ever(event: ProgramFailed) -> None:
    assert after(STATUS, event) == after(STATUS, replace(event, unanswered=None))


def test_without_resilient_nothing_is_waited_for() -> None:
    assert isinstance(after(STATUS, failed(), settings=Settings(nodes=2)), End)


def test_what_is_waited_for_is_named_as_people_write_it() -> None:
    assert wording.target(Target("port", "::1", 80)) == "[::1]:80"
    assert wording.target(Target("name")) == "the name server"
    assert wording.target(Target("name", "db.site")) == "db.site"
    assert wording.target(Target("url", "a", 80, "http://a:80/x")) == "http://a:80/x"
    busy = replace(unanswered(Target("path", of="/data")), why=NoAnswer("HTTP", 503))
    assert wording.waits_for(busy).startswith("waits for /data, HTTP 503 since ")
