"""Nodes that are missing when a job begins, and nodes that the resource manager calls down or drained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laggard.resilience.decision import wording
from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import (
    EXIT_TOO_FEW_NODES,
    JobStatus,
    NodeDrained,
    NodeLost,
    NodeReturned,
    NodesDrained,
    RanksReplaced,
    Relaunch,
    Report,
    Settings,
)
from laggard.resilience.decision.evidence import Finding, Found
from laggard.resilience.decision.failure import Failure, explain
from laggard.resilience.decision.ledger import Incident
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Exclusion, Roster, bad_and_well
from tests.decided import Ended, ended

NOW_S = 1e9
TWO = Settings(nodes=2, resilient=True)
HOSTS = ("n1", "n2", "n3", "n4")
DRAINED = NodeWord("Slurm", "n3", "drained", "bad disk")


def killed_on(host: str) -> Failure:
    return explain([ProcessEnd(host, pid=1, exit_code=-9, ended_s=NOW_S, ran_s=60.0, lines=(), rank=2)], {})


def test_a_drained_node_leaves_the_reserve_and_nothing_speaks_against_it_when_it_is_well() -> None:
    status = JobStatus(Roster(("n1", "n2"), ("n3", "n4")), NOW_S)
    decision = decide(TWO, status, NodesDrained((DRAINED,)), now_s=NOW_S, progressed=True)
    assert isinstance(decision, Report)
    assert wording.reason(decision.reason) == "n3 leaves the reserve: Slurm says n3 is drained: bad disk"
    assert decision.status.roster == Roster(("n1", "n2"), ("n4",), (Exclusion("n3", NOW_S, lost=True),))
    assert decision.status.ledger == ()
    lost = decide(TWO, decision.status, NodeLost("n2"), now_s=NOW_S, progressed=True)
    assert isinstance(lost, Relaunch)
    assert lost.status.roster.active == ("n1", "n4")
    back = decide(TWO, decision.status, NodeReturned("n3"), now_s=NOW_S + 600, progressed=True)
    assert isinstance(back, Report)
    assert back.status == JobStatus(Roster(("n1", "n2"), ("n4", "n3")), NOW_S)
    assert wording.reason(back.reason) == "n3 is back: it is in the reserve"


def test_a_drained_node_in_use_stays_in_use() -> None:
    status = JobStatus(Roster(("n1", "n3"), ("n4",)), NOW_S)
    decision = decide(TWO, status, NodesDrained((DRAINED,)), now_s=NOW_S, progressed=True)
    assert isinstance(decision, Report)
    assert decision.status == status


@pytest.mark.parametrize(
    ("active", "reserve", "stays"),
    [
        (("n1", "n3"), ("n4",), False),
        (("n1", "n3"), (), True),  # nobody could take its place
        (("n3", "n1"), ("n4",), True),  # it is the primary
        (("n1", "n2"), ("n3", "n4"), True),  # it is not in use
    ],
)
def test_a_node_of_the_reserve_may_take_the_place_of_a_drained_one_and_no_limit_of_restarts_counts(
    active: tuple[str, ...], reserve: tuple[str, ...], *, stays: bool
) -> None:
    status = JobStatus(Roster(active, reserve), NOW_S, relaunched_s=(NOW_S - 1,))
    settings = replace(TWO, max_restarts=1)
    decision = decide(settings, status, NodeDrained(DRAINED), now_s=NOW_S, progressed=True)
    assert isinstance(decision, Report)
    if stays:
        assert decision.status == status
    else:
        assert decision.status.roster == Roster(("n1", "n4"), (), (Exclusion("n3", NOW_S, lost=True),))
        assert wording.reason(decision.reason) == (
            "Slurm says n3 is drained: bad disk; without n3; n4 comes in from the reserve"
        )


def test_a_node_is_left_whose_ranks_are_replaced_again_and_again() -> None:
    status = JobStatus(Roster(("n1", "n2"), ("n3",)), NOW_S)
    for n_failures in range(1, 5):
        killed = killed_on("n2")
        decision = decide(TWO, status, RanksReplaced(killed), now_s=NOW_S + n_failures, progressed=True)
        assert isinstance(decision, Report)
        assert len(decision.status.ledger) == n_failures
        status = replace(status, ledger=decision.status.ledger)
        assert decision.status.roster == (Roster(("n1", "n3"), ("n2",)) if n_failures >= 3 else status.roster)


@pytest.mark.parametrize(
    ("roster", "elsewhere"),
    [
        (Roster(("n1", "n2"), ()), 0),
        (Roster(("n2", "n1"), ("n3",)), 0),  # it is the primary
        (Roster(("n1", "n2"), ("n3",)), 3),  # ranks fail elsewhere, too
    ],
)
def test_a_node_whose_ranks_are_replaced_again_and_again_stays_if_it_is_not_the_only_one_or_needed(
    roster: Roster, elsewhere: int
) -> None:
    ledger = (
        *(Incident("n2", NOW_S, 0.75) for _ in range(2)),
        *(Incident("n1", NOW_S, 0.75) for _ in range(elsewhere)),
    )
    status = JobStatus(roster, NOW_S, ledger=ledger)
    decision = decide(TWO, status, RanksReplaced(killed_on("n2")), now_s=NOW_S, progressed=True)
    assert isinstance(decision, Report)
    assert decision.status.roster == roster


def test_ranks_leave_a_node_that_its_check_proves_bad_after_the_first_of_them_was_replaced() -> None:
    status = JobStatus(Roster(("n1", "n2"), ("n3", "n4")), NOW_S, relaunched_s=(NOW_S,))
    bad = tuple(Found(host, (Finding("gpu lost", "0"),)) for host in ("n2", "n3"))
    settings = replace(TWO, max_restarts=1)
    decision = decide(settings, status, RanksReplaced(killed_on("n2"), bad), now_s=NOW_S, progressed=True)
    assert isinstance(decision, Report)
    assert decision.status.roster.active == ("n1", "n4")
    assert decision.status.roster.excluded_hosts == ("n2", "n3")


def test_a_job_begins_without_the_nodes_that_do_not_answer() -> None:
    begun = begin(TWO, HOSTS, [], NOW_S, missing={"n2"})
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n3"), ("n4",), (Exclusion("n2", NOW_S, lost=True),))
    assert [(each.host, each.is_loss) for each in begun.ledger] == [("n2", True)]
    assert begun.relaunched_s == ()


def test_a_job_with_too_few_nodes_that_answer_ends_or_goes_on_with_fewer() -> None:
    over = begin(TWO, HOSTS, [], NOW_S, missing={"n2", "n3", "n4"})
    assert ended(over) == Ended(
        EXIT_TOO_FEW_NODES, "1 good node is left for --nodes=2; with --exhaust-resources the job would go on with fewer"
    )
    begun = begin(replace(TWO, exhaust_resources=True), HOSTS, [], NOW_S, missing={"n2", "n3", "n4"})
    assert isinstance(begun, JobStatus)
    assert begun.roster.active == ("n1",)


def test_a_node_in_quarantine_that_does_not_answer_stays_there() -> None:
    known = Exclusion("n3", NOW_S - 60)
    begun = begin(TWO, HOSTS, [known], NOW_S, missing={"n3"})
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n2"), ("n4",), (known,))


def test_a_job_begins_with_the_nodes_against_which_nothing_is_said_and_with_the_others_if_it_must() -> None:
    drained = {"n1": "draining", "n2": "draining"}  # the primary is where laggard runs
    begun = begin(TWO, HOSTS, [], NOW_S, avoided=drained)
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n3"), ("n4", "n2"))
    all_of_them = begin(replace(TWO, nodes=4), HOSTS, [], NOW_S, avoided=drained)
    assert isinstance(all_of_them, JobStatus)
    assert all_of_them.roster.active == ("n1", "n3", "n4", "n2")


def test_a_node_in_quarantine_is_not_used_although_something_is_said_against_it_as_well() -> None:
    known = Exclusion("n3", NOW_S - 60)
    begun = begin(TWO, HOSTS[:3], [known], NOW_S, avoided={"n3": "down"})
    assert isinstance(begun, JobStatus)
    assert begun.roster == Roster(("n1", "n2"), (), (known,))


def test_a_requeued_job_avoids_what_is_excluded_now_or_still_serves_its_quarantine_elsewhere() -> None:
    roster = Roster(("n1", "n2"), ("n3",), (Exclusion("n4", NOW_S), Exclusion("n5", NOW_S, lost=True)))
    remembered = [
        *roster.excluded,
        Exclusion("n3", NOW_S - 60),  # it is back in the reserve
        Exclusion("n6", NOW_S - 3600),  # from an earlier run of the job, which does not have it now
        Exclusion("n7", NOW_S - 3600, lost=True),
        Exclusion("n8", NOW_S - 86400),
    ]
    bad, well = bad_and_well(roster, remembered, 86400, NOW_S)
    assert bad == {"n4", "n5", "n6"}
    assert well == {"n1", "n2", "n3", "n7", "n8"}
