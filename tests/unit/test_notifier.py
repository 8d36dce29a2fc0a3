"""Lines to a webhook, which is a real HTTP server of the test."""

from __future__ import annotations

import pytest

from laggard.detectors.evidence import WrongResults
from laggard.detectors.verdict import Evidence, Verdict
from laggard.resilience.decision.failure import Failure
from laggard.resilience.record.entries import FailureFound, GaveUp, JobEnded, LaunchEnded, Record, Told
from laggard.resilience.record.notifier import Notifier, line_of
from tests.webhook import webhook

FAILURE = Failure("node1", 0, 7, 1, 1, 0.0, 9.0, "RuntimeError: no", "", "unknown", "")


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (Verdict("n", "0", 1.5, "slow", Evidence("n", "0", WrongResults("gemm"))), "n gpu 0"),
        (FailureFound(FAILURE), "RuntimeError: no"),
        (LaunchEnded(3, (FAILURE,), "failure"), "launch 3 ended: "),
        (GaveUp("no room"), "laggard gave up: no room"),
        (JobEnded(69, ("node2", "node3")), "the job ended with exit code 69, without node2, node3"),
        (JobEnded(0), "the job ended with exit code 0"),
    ],
)
def test_verdicts_failures_relaunches_and_the_end_are_worth_a_line(record: Record, line: str) -> None:
    assert line in line_of(record)


@pytest.mark.parametrize("record", [Told("gap", "2 s"), LaunchEnded(3, (FAILURE,), "end")])
def test_other_events_are_not(record: Record) -> None:
    assert line_of(record) == ""


def test_lines_arrive_in_order_and_the_last_one_before_the_job_has_ended() -> None:
    with webhook() as server, Notifier(server.address, "train", tell_trouble=pytest.fail) as lines:
        lines.note(GaveUp("first"))
        lines.note(Told("gap", "2 s"))
        lines.note(JobEnded(0))
        lines.__exit__()
        assert server.lines == ["train: laggard gave up: first", "train: the job ended with exit code 0"]


@pytest.mark.parametrize("code", [429, 500, 503])
def test_what_may_pass_is_tried_again(code: int) -> None:
    with (
        webhook([code, code]) as server,
        Notifier(server.address, "train", tell_trouble=pytest.fail, first_pause_s=0.0) as lines,
    ):
        lines.note(JobEnded(0))
        server.wait_for(3)
    assert server.lines == ["train: the job ended with exit code 0"] * 3


def test_a_refusal_is_told_once_without_the_address_and_nothing_is_tried_again() -> None:
    told: list[str] = []
    with webhook([404, 404]) as server:
        with Notifier(server.address, "train", tell_trouble=told.append) as lines:
            lines.note(GaveUp("first"))
            lines.note(JobEnded(1))
        assert len(server.lines) == 2
    assert told == ["127.0.0.1 does not take the lines of --notify: 404 Not Found"]


def test_the_job_does_not_wait_for_a_webhook_that_is_not_there() -> None:
    told: list[str] = []
    with Notifier("http://127.0.0.1:1/secret", "train", tell_trouble=told.append) as lines:
        for number in range(1000):
            lines.note(GaveUp(str(number)))
    assert len(told) == 1
    assert "secret" not in told[0]
