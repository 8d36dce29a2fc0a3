"""What the restart policy guarantees for every sequence of events."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import (
    EXIT_TOO_FEW_NODES,
    End,
    Event,
    JobStatus,
    NodeLost,
    NodeReturned,
    NodesAccused,
    NodesDrained,
    ProgramEnded,
    ProgramFailed,
    ProgramHung,
    Relaunch,
    Report,
    Settings,
)
from laggard.resilience.decision.evidence import Finding, Found
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Roster

BAD = (Finding("gpu lost", "0"),)
HOSTS = [f"n{i}" for i in range(1, 7)]

settings = st.builds(
    lambda nodes, resilient, exhaust: Settings(nodes, resilient, resilient and exhaust),
    st.integers(1, len(HOSTS)),
    st.booleans(),
    st.booleans(),
)
moments = st.floats(0, 1e6)
failures = st.builds(
    Failure,
    host=st.sampled_from(HOSTS),
    exit_code=st.integers(-15, 255).filter(bool),
    job_exit_code=st.integers(1, 255).filter(lambda code: code != EXIT_TOO_FEW_NODES),  # a program may end with it too
    ended_s=moments,
    ran_s=moments,
    fingerprint=st.sampled_from(["a", "b"]),
    is_shared=st.booleans(),
)
events = st.one_of(
    st.builds(NodesAccused, st.frozensets(st.sampled_from(HOSTS)), recovers=st.booleans()),
    st.builds(NodeLost, st.sampled_from(HOSTS), recovers=st.booleans()),
    st.builds(
        lambda hosts: NodesDrained(tuple(NodeWord("Slurm", host, "drained") for host in hosts)),
        st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3, unique=True),
    ),
    st.builds(NodeReturned, st.sampled_from(HOSTS), st.sampled_from([(), BAD])),
    st.builds(
        ProgramFailed, failures, st.lists(st.builds(Found, st.sampled_from(HOSTS), st.just(BAD)), max_size=2).map(tuple)
    ),
    st.builds(ProgramHung, st.floats(1, 1e6)),
    st.builds(ProgramEnded),
)


courses = st.lists(st.tuples(events, moments, st.booleans()), max_size=30)


def beginning(chosen: Settings, size: int, with_devices: frozenset[str] = frozenset()) -> JobStatus:
    begun = begin(chosen, HOSTS[: max(size, chosen.nodes)], [], 0.0, with_devices=with_devices)
    assert isinstance(begun, JobStatus)
    return begun


def everyone(roster: Roster) -> list[str]:
    return [*roster.active, *roster.reserve, *(exclusion.host for exclusion in roster.excluded)]


def is_needed(chosen: Settings, roster: Roster) -> bool:
    """Return whether the job could not do with one node less."""
    return len(roster.active) <= (1 if chosen.exhaust_resources else chosen.nodes)


@given(settings, st.integers(1, len(HOSTS)), st.frozensets(st.sampled_from(HOSTS)), courses)
def test_a_job_keeps_its_primary_every_node_has_one_place_and_some_node_always_has_devices(
    chosen: Settings, size: int, with_devices: frozenset[str], course: list[tuple[Event, float, bool]]
) -> None:
    status = beginning(chosen, size, with_devices)
    known, primary = set(everyone(status.roster)), status.roster.primary
    now_s = 0.0
    for event, passed_s, progressed in course:
        now_s += passed_s
        decision = decide(chosen, status, event, now_s=now_s, progressed=progressed)
        if isinstance(decision, End):
            return
        status = decision.status
        places = everyone(status.roster)
        assert status.roster.primary == primary
        assert len(places) == len(set(places))
        assert set(places) <= known
        assert len(status.roster.active) <= chosen.nodes
        assert primary not in status.roster.active[1:]
        assert primary not in status.roster.excluded_hosts
        if status.waits_since_s is None:
            assert status.roster.can_run


@given(settings, st.integers(1, len(HOSTS)), courses)
def test_an_excluded_node_is_not_taken_back_before_its_time(
    chosen: Settings, size: int, course: list[tuple[Event, float, bool]]
) -> None:
    status = beginning(chosen, size)
    now_s = 0.0
    since_s: dict[str, float] = {}
    for event, passed_s, progressed in course:
        now_s += passed_s
        decision = decide(chosen, status, event, now_s=now_s, progressed=progressed)
        if isinstance(decision, End):
            return
        status = decision.status
        since_s |= {exclusion.host: exclusion.since_s for exclusion in status.roster.excluded if not exclusion.lost}
        in_use = {*status.roster.active, *status.roster.reserve}
        if status.roster.primary in in_use and is_needed(chosen, status.roster):
            since_s.pop(status.roster.primary, None)  # whatever its devices are
        assert not any(since_s.get(host, -inf) > now_s - chosen.quarantine_s for host in in_use)


@given(settings, st.integers(1, len(HOSTS)), events)
def test_nothing_is_relaunched_unless_asked_for(chosen: Settings, size: int, event: Event) -> None:
    decision = decide(chosen, beginning(chosen, size), event, now_s=0, progressed=True)
    assert chosen.resilient or not isinstance(decision, Relaunch)


@given(settings, st.integers(1, len(HOSTS)), events)
def test_fewer_nodes_than_asked_for_are_used_only_with_exhaust_resources(
    chosen: Settings, size: int, event: Event
) -> None:
    decision = decide(chosen, beginning(chosen, size), event, now_s=0, progressed=True)
    if isinstance(decision, Relaunch) and not chosen.exhaust_resources and decision.status.waits_since_s is None:
        assert len(decision.status.roster.active) == chosen.nodes


@given(settings, st.integers(1, len(HOSTS)), st.lists(st.sampled_from(HOSTS), min_size=1))
def test_verdicts_alone_cause_at_most_one_relaunch_per_node_and_quarantine(
    chosen: Settings, size: int, accused: list[str]
) -> None:
    """Each relaunch costs a node, and the primary's devices can be had back once, so it ends."""
    status = beginning(chosen, size)
    spare = len(everyone(status.roster))
    relaunches = 0
    for host in accused:
        decision = decide(chosen, status, NodesAccused(frozenset({host})), now_s=0, progressed=True)
        if isinstance(decision, End):
            break
        relaunches += isinstance(decision, Relaunch)
        status = decision.status
    assert relaunches <= spare


@given(settings, st.integers(1, len(HOSTS)), events)
def test_a_report_leaves_the_running_program_its_nodes(chosen: Settings, size: int, event: Event) -> None:
    status = beginning(chosen, size)
    decision = decide(chosen, status, event, now_s=0, progressed=True)
    if isinstance(decision, Report):
        # The program goes on without a lost node if it restarts its own workers.
        lost = {event.host} if isinstance(event, NodeLost) and event.recovers else set[str]()
        assert decision.status.roster.active == tuple(host for host in status.roster.active if host not in lost)


@given(settings, st.integers(1, len(HOSTS)), failures)
def test_failures_without_progress_end_the_job_within_two_hours_and_few_launches(
    chosen: Settings, size: int, failure: Failure
) -> None:
    status, now_s, launches = beginning(chosen, size), 0.0, 0
    while isinstance(
        decision := decide(chosen, status, ProgramFailed(failure), now_s=now_s, progressed=False), Relaunch
    ):
        status, launches = decision.status, launches + 1
        now_s += decision.wait_s + 1
    assert now_s <= chosen.give_up_after_s + 302
    assert launches <= 45


@given(settings, st.integers(1, len(HOSTS)), courses)
def test_a_failure_never_leaves_fewer_nodes_than_asked_for(
    chosen: Settings, size: int, course: list[tuple[Event, float, bool]]
) -> None:
    """Evidence that is less than a proof costs a node only where there is another one, or fewer will do."""
    status = beginning(chosen, size)
    for event, now_s, progressed in course:
        decision = decide(chosen, status, event, now_s=now_s, progressed=progressed)
        if isinstance(decision, End):
            suspected = isinstance(event, ProgramFailed) and not event.evidence
            assert not suspected or decision.exit_code != EXIT_TOO_FEW_NODES
            return
        status = decision.status


@given(settings, st.integers(1, len(HOSTS)), courses, failures)
def test_a_failure_of_what_ranks_gave_each_other_strikes_none_of_their_nodes(
    chosen: Settings, size: int, course: list[tuple[Event, float, bool]], failure: Failure
) -> None:
    status, now_s = beginning(chosen, size), 0.0
    for event, passed_s, progressed in course:
        now_s += passed_s
        decision = decide(chosen, status, event, now_s=now_s, progressed=progressed)
        status = status if isinstance(decision, End) else decision.status
    shared = ProgramFailed(replace(failure, is_shared=True))
    for progressed in (True, False):
        decision = decide(chosen, status, shared, now_s=now_s, progressed=progressed)
        if isinstance(decision, Relaunch):
            assert all(each in status.ledger for each in decision.status.ledger)
            assert decision.status.roster.excluded_hosts == status.roster.excluded_hosts
