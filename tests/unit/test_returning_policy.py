"""Nodes that come back: after a loss, after a quarantine, and while the job waits for them; as tables and stories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Evidence
from laggard.resilience.decision import wording
from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import (
    Decision,
    End,
    Event,
    JobStatus,
    NodeLost,
    NodeReturned,
    NodesAccused,
    NodesMissing,
    ProgramHung,
    Relaunch,
    Report,
    Settings,
)
from laggard.resilience.decision.evidence import Finding
from laggard.resilience.decision.ledger import Incident, loss_of
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.roster import Exclusion, Roster
from tests.decided import Ended, ended

NOW_S = 1e9
DAY_S = 86400.0
RESILIENT = Settings(nodes=2, resilient=True)
EXHAUSTING = replace(RESILIENT, exhaust_resources=True)


def after(settings: Settings, status: JobStatus, event: Event, now_s: float = NOW_S) -> Decision:
    return decide(settings, status, event, now_s=now_s, progressed=True)


def status_after(settings: Settings, status: JobStatus, *events: Event, now_s: float = NOW_S) -> JobStatus:
    """Let events happen at one moment; return the status then."""
    for event in events:
        decision = after(settings, status, event, now_s)
        assert isinstance(decision, Relaunch | Report), decision
        status = decision.status
    return status


def excluded(host: str = "n2", *, since_s: float = NOW_S, lost: bool = False, count: int = 1) -> Exclusion:
    return Exclusion(host, since_s, lost, count)


def job_without(exclusion: Exclusion, *lost_s: float, past: tuple[Exclusion, ...] = ()) -> JobStatus:
    ledger = tuple(loss_of(exclusion.host, (), moment) for moment in lost_s)
    return JobStatus(Roster(("n1", "n3"), ("n4",), (exclusion,), past), NOW_S, ledger=ledger)


BACK = Roster(("n1", "n3"), ("n4", "n2"))

RETURNS: list[tuple[str, JobStatus, NodeReturned, float, Roster, str]] = [
    (
        "a node that was lost comes back as soon as it answers again",
        job_without(excluded(lost=True), NOW_S),
        NodeReturned("n2"),
        NOW_S + 12,
        BACK,
        "n2 is back: it is in the reserve",
    ),
    (
        "a node that was lost twice stays out for its quarantine although it answers again",
        job_without(excluded(lost=True), NOW_S - 3600, NOW_S),
        NodeReturned("n2"),
        NOW_S + 60,
        Roster(("n1", "n3"), ("n4",), (excluded(),)),
        "n2 answers again: excluded for 23 h 59 min",
    ),
    (
        "a node that was accused stays out for its quarantine",
        job_without(excluded()),
        NodeReturned("n2"),
        NOW_S + DAY_S - 60,
        Roster(("n1", "n3"), ("n4",), (excluded(),)),
        "n2 answers again: excluded for 60.0 s",
    ),
    (
        "a node that was accused comes back after its quarantine, and its exclusion is remembered",
        job_without(excluded()),
        NodeReturned("n2"),
        NOW_S + DAY_S,
        replace(BACK, past=(excluded(),)),
        "n2 is back: it is in the reserve",
    ),
    (
        "the second quarantine takes twice as long",
        job_without(excluded(count=2)),
        NodeReturned("n2"),
        NOW_S + DAY_S,
        Roster(("n1", "n3"), ("n4",), (excluded(count=2),)),
        "n2 answers again: excluded for 24 h 0 min",
    ),
    (
        "no quarantine takes more than seven times as long as the first",
        job_without(excluded(count=9)),
        NodeReturned("n2"),
        NOW_S + 7 * DAY_S,
        replace(BACK, past=(excluded(count=9),)),
        "n2 is back: it is in the reserve",
    ),
    (
        "a node that does not pass its probe after its quarantine has a longer one",
        job_without(excluded()),
        NodeReturned("n2", (Finding("slow", slow=Evidence("n2", "1", Slow(2.1, "own past", 7))),)),
        NOW_S + DAY_S,
        Roster(("n1", "n3"), ("n4",), (excluded(since_s=NOW_S + DAY_S, count=2),)),
        "n2 does not pass its probe (n2 gpu 1: 110 % slower than its own past and than 7 peers):"
        " excluded for 48 h 0 min",
    ),
    (
        "a node that was lost and does not pass its probe goes into quarantine",
        job_without(excluded(lost=True)),
        NodeReturned("n2", (Finding("gpu gone", "1"),)),
        NOW_S + 30,
        Roster(("n1", "n3"), ("n4",), (excluded(since_s=NOW_S + 30),)),
        "n2 does not pass its probe (gpu 1 is gone): excluded for 24 h 0 min",
    ),
    (
        "a node that is in use already is not put into the reserve",
        JobStatus(BACK, NOW_S),
        NodeReturned("n3"),
        NOW_S,
        BACK,
        "n3 is not excluded",
    ),
]


@pytest.mark.parametrize(
    ("status", "event", "now_s", "roster", "reason"), [row[1:] for row in RETURNS], ids=[row[0] for row in RETURNS]
)
def test_a_node_that_returns(status: JobStatus, event: NodeReturned, now_s: float, roster: Roster, reason: str) -> None:
    decision = after(RESILIENT, status, event, now_s)
    assert isinstance(decision, Report)
    assert (decision.status.roster, wording.reason(decision.reason)) == (roster, reason)


def test_the_next_exclusion_of_a_node_that_was_back_counts_as_its_second() -> None:
    status = status_after(RESILIENT, job_without(excluded()), NodeReturned("n2"), now_s=NOW_S + DAY_S)
    again = status_after(RESILIENT, status, NodesAccused(frozenset({"n2"})), now_s=NOW_S + 2 * DAY_S)
    assert again.roster.excluded == (excluded(since_s=NOW_S + 2 * DAY_S, count=2),)
    assert again.roster.past == ()


def test_a_loss_that_cost_no_quarantine_does_not_lengthen_the_next_one() -> None:
    remembered = (excluded(since_s=NOW_S - DAY_S),)
    status = JobStatus(Roster(("n1", "n2"), ("n3",), past=remembered), NOW_S)
    lost = status_after(RESILIENT, status, NodeLost("n2"))
    assert lost.roster.excluded == (excluded(lost=True, count=2),)
    assert status_after(RESILIENT, lost, NodeReturned("n2")).roster.past == (excluded(),)
    assert status_after(RESILIENT, JobStatus(BACK, NOW_S), NodeLost("n2"), NodeReturned("n2")).roster.past == ()


def test_a_node_that_is_lost_again_within_a_day_has_a_quarantine() -> None:
    status = status_after(RESILIENT, JobStatus(BACK, NOW_S), NodeLost("n3"), NodeReturned("n3"))
    assert status.roster == Roster(("n1", "n4"), ("n2", "n3"))
    again = status_after(RESILIENT, status, NodeLost("n3"), NodeReturned("n3"), now_s=NOW_S + 3600)
    assert again.roster.excluded_hosts == ("n3",)
    assert again.roster.lost_hosts == ()


def test_a_pause_of_the_network_that_several_nodes_share_speaks_against_the_first_of_them_alone() -> None:
    status = JobStatus(Roster(("n1", "n2"), ("n3",)), NOW_S)
    waiting = status_after(RESILIENT, status, NodeLost("n2"), NodeLost("n3"))
    assert [(each.host, each.stake) for each in waiting.ledger] == [("n2", 50), ("n3", 0)]


@pytest.mark.parametrize("event", [NodesAccused(frozenset()), ProgramHung(61.2)])
def test_a_job_that_went_on_with_fewer_nodes_grows_back_at_its_next_relaunch(event: Event) -> None:
    alone = JobStatus(Roster(("n1",), (), (excluded("n2", lost=True), excluded("n3", lost=True))), NOW_S)
    decision = after(EXHAUSTING, status_after(EXHAUSTING, alone, NodeReturned("n3")), event)
    assert isinstance(decision, Relaunch)
    assert decision.status.roster.active == ("n1", "n3")
    assert "with n3 from the reserve" in wording.reason(decision.reason)


class TestWaiting:
    """Two nodes of three are lost, and there was one spare."""

    BEGUN = JobStatus(Roster(("n1", "n2"), ("n3",)), NOW_S - 60)
    BOTH = (NodeLost("n2"), NodeLost("n3"))

    def test_the_job_waits_for_lost_nodes_before_it_ends_for_want_of_them(self) -> None:
        first = status_after(RESILIENT, self.BEGUN, NodeLost("n2"))
        assert first.waits_since_s is None
        decision = after(RESILIENT, first, NodeLost("n3"), NOW_S + 1)
        assert isinstance(decision, Relaunch)
        assert decision.status.waits_since_s == NOW_S + 1
        assert decision.status.roster.active == ("n1",)
        assert wording.reason(decision.reason) == (
            "n3 is lost; without n3; waiting up to 5 min 0 s for n2, n3 to return"
        )

    def test_it_goes_on_when_enough_of_them_are_back(self) -> None:
        waiting = status_after(RESILIENT, self.BEGUN, *self.BOTH)
        decision = after(RESILIENT, waiting, NodeReturned("n3"), NOW_S + 9)
        assert isinstance(decision, Relaunch)
        assert wording.reason(decision.reason) == "n3 is back; with n3 from the reserve"
        assert decision.status.roster == Roster(("n1", "n3"), (), (excluded(lost=True),))
        assert decision.status.waits_since_s is None
        assert decision.status.launched_s == NOW_S + 9
        later = status_after(RESILIENT, decision.status, NodeReturned("n2"), now_s=NOW_S + 20)
        assert later.roster == Roster(("n1", "n3"), ("n2",))

    def test_it_waits_on_while_there_are_too_few_and_no_longer_for_that(self) -> None:
        three = replace(RESILIENT, nodes=3)
        begun = JobStatus(Roster(("n1", "n2", "n3")), NOW_S - 60)
        waiting = status_after(three, begun, *self.BOTH)
        decision = after(three, waiting, NodeReturned("n3"), NOW_S + 100)
        assert isinstance(decision, Relaunch)
        assert decision.status.waits_since_s == NOW_S
        assert (
            wording.reason(decision.reason)
            == "n3 is back; with n3 from the reserve; waiting up to 3 min 20 s for n2 to return"
        )

    def test_waiting_counts_as_one_relaunch(self) -> None:
        once = replace(RESILIENT, max_restarts=2)
        waiting = status_after(once, self.BEGUN, *self.BOTH)
        assert waiting.relaunched_s == (NOW_S, NOW_S)
        on = status_after(once, waiting, NodeReturned("n3"), now_s=NOW_S + 9)
        assert (on.relaunched_s, on.stalled_since_s) == (waiting.relaunched_s, NOW_S)

    def test_nodes_that_do_not_return_end_the_job_with_69(self) -> None:
        waiting = status_after(RESILIENT, self.BEGUN, *self.BOTH)
        assert ended(after(RESILIENT, waiting, NodesMissing(), NOW_S + 300)) == Ended(
            69,
            "1 good node is left for --nodes=2; with --exhaust-resources the job would go on with fewer; "
            "n2, n3 have not returned within 5 min 0 s",
        )

    def test_a_node_that_was_lost_twice_is_taken_where_the_job_waits_for_it(self) -> None:
        two = JobStatus(Roster(("n1", "n2")), NOW_S - 60, ledger=(loss_of("n2", (), NOW_S - 3600),))
        waiting = status_after(RESILIENT, two, NodeLost("n2"))
        assert len(waiting.ledger) == 2
        assert status_after(RESILIENT, waiting, NodeReturned("n2")).roster.active == ("n1", "n2")

    def test_a_node_that_does_not_pass_its_probe_is_not_waited_for_any_longer(self) -> None:
        two = JobStatus(Roster(("n1", "n2")), NOW_S - 60)
        waiting = status_after(RESILIENT, two, NodeLost("n2"))
        end = after(RESILIENT, waiting, NodeReturned("n2", (Finding("gpu gone", "0"),)))
        assert isinstance(end, End)
        assert end.exit_code == 69
        assert wording.reason(end.reason).startswith("n2 does not pass its probe (gpu 0 is gone)")

    def test_nobody_is_waited_for_who_cannot_return(self) -> None:
        accused = Roster(("n1", "n3"), (), (excluded(),))
        four = replace(RESILIENT, nodes=4)
        assert isinstance(after(RESILIENT, JobStatus(accused, NOW_S), NodesAccused(frozenset({"n3"}))), End)
        assert isinstance(after(four, JobStatus(accused, NOW_S), NodeLost("n3")), End)

    def test_without_patience_or_with_fewer_nodes_allowed_it_does_not_wait(self) -> None:
        hasty = replace(RESILIENT, wait_for_nodes_s=0.0)
        first = status_after(hasty, self.BEGUN, NodeLost("n2"))
        assert ended(after(hasty, first, NodeLost("n3"))) == Ended(
            69, "1 good node is left for --nodes=2; with --exhaust-resources the job would go on with fewer"
        )
        assert status_after(EXHAUSTING, self.BEGUN, *self.BOTH).waits_since_s is None

    def test_other_limits_end_the_job_instead(self) -> None:
        used_up = replace(RESILIENT, max_restarts=1)
        first = status_after(used_up, self.BEGUN, NodeLost("n2"))
        assert ended(after(used_up, first, NodeLost("n3"))) == Ended(93, "--max-restarts=1 is used up")

    def test_a_primary_whose_agent_is_lost_meanwhile_gets_a_new_cluster(self) -> None:
        waiting = status_after(RESILIENT, self.BEGUN, *self.BOTH)
        decision = after(RESILIENT, waiting, NodeLost("n1"), NOW_S + 5)
        assert isinstance(decision, Relaunch)
        assert decision.new_cluster
        assert decision.status.waits_since_s == NOW_S


HOSTS = ("n1", "n2", "n3")


def test_a_quarantine_is_a_day_unless_the_user_says_otherwise() -> None:
    assert isinstance(begin(RESILIENT, ("n1", "n2"), [excluded()], NOW_S + DAY_S - 1), End)
    begun = begin(RESILIENT, ("n1", "n2"), [excluded()], NOW_S + DAY_S)
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n2"), past=(excluded(),))
    assert isinstance(begin(replace(RESILIENT, quarantine_s=1.0), ("n1", "n2"), [excluded()], NOW_S + 1), JobStatus)


def test_a_node_that_comes_back_in_a_later_job_is_its_last() -> None:
    begun = begin(RESILIENT, HOSTS, [excluded()], NOW_S + DAY_S + 60)
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n3"), ("n2",), past=(excluded(),))


def test_the_ledger_of_an_earlier_job_counts_in_the_next_for_a_day() -> None:
    ledger = (Incident("n2", NOW_S - DAY_S, 4.0), Incident("n3", NOW_S - DAY_S + 1, 4.0))
    begun = begin(RESILIENT, HOSTS, [], NOW_S, ledger)
    assert begun == JobStatus(Roster(("n1", "n2"), ("n3",)), NOW_S, ledger=ledger[1:])


def test_a_node_that_was_only_lost_is_back_in_the_next_job_unless_it_was_lost_twice() -> None:
    lost = [excluded(lost=True)]
    once = [loss_of("n2", (), NOW_S)]
    begun = begin(RESILIENT, HOSTS, lost, NOW_S + 60, once)
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n3"), ("n2",))
    again = begin(RESILIENT, HOSTS, lost, NOW_S + 60, [*once, loss_of("n2", once, NOW_S + 30)])
    assert isinstance(again, JobStatus)
    assert again.roster == Roster(("n1", "n3"), (), (excluded(),))


def test_an_exclusion_is_forgotten_four_weeks_after_it_was_over() -> None:
    for days, past in ((28, (excluded(),)), (29, ())):
        begun = begin(RESILIENT, HOSTS, [excluded()], NOW_S + days * DAY_S)
        assert isinstance(begun, JobStatus)
        assert begun.roster.past == past
