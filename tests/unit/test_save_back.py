"""A checkpoint that is set aside: how a job ends that fails from the older one, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from laggard.kvstore.checkpoints.complete import Checkpoint, Newest
from laggard.resilience.decision import wording
from laggard.resilience.decision.events import Decision, End, JobStatus, ProgramFailed, Relaunch, Settings
from laggard.resilience.decision.failure import explain
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.row import Course

SETTINGS = Settings(1, resilient=True, backoff_s=0.0)
NOT_FINITE = "FloatingPointError: the loss is not finite"
GONE = "StoreError: the key is gone"
PEER = "ConnectionResetError: [Errno 104] Connection reset by peer"
SAVE = (Newest("checkpoint", Checkpoint(0, 8, 1), Checkpoint(0, 4, 1)),)
# Of a job that has come to step 11: when it goes on from step 8, from step 4, which is its last, or long after either
NEWEST = Course(step=9, passed=False, saves=SAVE, ever_progressed=True)
OLDER = Course(step=5, passed=True, ever_progressed=True)
AT_START = Course(is_early=True, ever_progressed=True)
SAYS = "; it fails from the checkpoint of step 8 and from the one before it, of step 4: "


def failed(words: str, course: Course, exit_code: int = 1) -> ProgramFailed:
    trace = ("Traceback (most recent call last):", '  File "train.py", line 36, in step', "    step()")
    end = ProcessEnd("n1", 1, exit_code, 0.0, 5.0, (*trace, words) if words else ())
    return ProgramFailed(explain([end], {}), (), course)


def in_a_row(*events: ProgramFailed, every_s: float) -> Sequence[Decision]:
    """Let the program fail again and again without a new step."""
    status, now_s, decisions = JobStatus(Roster(("n1",)), 0.0), 0.0, []
    for event in events:
        decisions.append(decide(SETTINGS, status, event, now_s=now_s, progressed=False))
        if not isinstance(decisions[-1], Relaunch):
            break
        status = replace(decisions[-1].status, launched_s=now_s)
        now_s += every_s
    return decisions


@pytest.mark.parametrize(
    ("words", "older", "every_s", "launches", "ends_with"),
    [
        (NOT_FINITE, OLDER, 20.0, 4, 1),  # at a step that was passed
        (NOT_FINITE, replace(AT_START, passed=True), 20.0, 4, 1),
        (NOT_FINITE, replace(AT_START, passed=True), 10.0, 7, 1),  # after a minute
        (GONE, replace(AT_START, passed=True), 300.0, 5, 1),  # what it needs at the start may have been away
        (GONE, OLDER, 20.0, 4, 1),
        (PEER, OLDER, 1800.0, 5, 93),
    ],
)
def test_what_fails_from_the_older_checkpoint_too_ends_the_job(
    words: str, older: Course, every_s: float, launches: int, ends_with: int
) -> None:
    first = [replace(failed(words, NEWEST), course=replace(NEWEST, is_early=older.is_early, step=older.step))] * 3
    decisions = in_a_row(*first, *[failed(words, older)] * 9, every_s=every_s)
    assert [bool(each.goes_back) for each in decisions if isinstance(each, Relaunch)].count(True) == (words != PEER)
    end = decisions[-1]
    assert isinstance(end, End)
    assert (len(decisions), end.exit_code) == (launches, ends_with)
    assert (SAYS in wording.reason(end.reason)) == (words != PEER)


def test_the_job_does_not_go_back_twice_but_it_may_again_after_a_new_step() -> None:
    events = [failed(NOT_FINITE, NEWEST)] * 3
    back = in_a_row(*events, every_s=1.0)[-1]
    assert isinstance(back, Relaunch)
    assert back.goes_back == back.status.went_back == SAVE
    assert back.wait_s == 0
    says = "; one checkpoint back, in case the newest is at fault; on the same nodes"
    assert wording.reason(back.reason).endswith(says)
    again = decide(SETTINGS, back.status, failed(GONE, NEWEST), now_s=9.0, progressed=False)
    assert isinstance(again, Relaunch)
    assert again.status.went_back == SAVE
    after = decide(SETTINGS, back.status, failed(GONE, NEWEST), now_s=9.0, progressed=True)
    assert isinstance(after, Relaunch)
    assert not after.status.went_back


@pytest.mark.parametrize("exit_code", [-9, -15, 137, 143, 247])
def test_a_program_that_is_killed_from_outside_again_and_again_does_not_go_back(exit_code: int) -> None:
    decisions = in_a_row(*[failed("", NEWEST, exit_code)] * 9, every_s=20.0)
    assert not any(isinstance(each, Relaunch) and each.goes_back for each in decisions)
