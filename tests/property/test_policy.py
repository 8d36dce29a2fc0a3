"""What the restart policy promises for every course of events, not only for those we thought of."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from resilience.policy import (
    End,
    Event,
    NodeLost,
    NodesAccused,
    ProgramDied,
    ProgramEnded,
    ProgramHung,
    Relaunch,
    Report,
    Settings,
    Standing,
    WorkerDied,
    begin,
    decide,
)
from resilience.roster import Roster

HOSTS = [f"n{i}" for i in range(1, 7)]

settings = st.builds(
    lambda nodes, resilient, exhaust: Settings(nodes, resilient, resilient and exhaust),
    st.integers(1, len(HOSTS)),
    st.booleans(),
    st.booleans(),
)
events = st.one_of(
    st.builds(NodesAccused, st.frozensets(st.sampled_from(HOSTS))),
    st.builds(NodeLost, st.sampled_from(HOSTS)),
    st.builds(ProgramDied, st.integers(1, 15)),
    st.builds(WorkerDied, st.integers(1, 255)),
    st.builds(ProgramHung, st.floats(1, 1e6)),
    st.builds(ProgramEnded, st.integers(0, 255)),
)


moments = st.floats(0, 1e6)
courses = st.lists(st.tuples(events, moments, st.booleans()), max_size=30)


def beginning(chosen: Settings, size: int) -> Standing:
    begun = begin(chosen, HOSTS[: max(size, chosen.nodes)], [], 0.0)
    assert isinstance(begun, Standing)
    return begun


def everyone(roster: Roster) -> list[str]:
    return [*roster.active, *roster.reserve, *roster.excluded_hosts]


@given(settings, st.integers(1, len(HOSTS)), courses)
def test_a_job_keeps_its_primary_and_every_node_has_one_place(
    chosen: Settings, size: int, course: list[tuple[Event, float, bool]]
) -> None:
    standing = beginning(chosen, size)
    known, primary = set(everyone(standing.roster)), standing.roster.primary
    now_s = 0.0
    for event, passed_s, progressed in course:
        now_s += passed_s
        decision = decide(chosen, standing, event, now_s=now_s, progressed=progressed)
        if isinstance(decision, End):
            return
        standing = decision.standing
        places = everyone(standing.roster)
        assert standing.roster.primary == primary
        assert len(places) == len(set(places))
        assert set(places) <= known
        assert len(standing.roster.active) <= chosen.nodes


@given(settings, st.integers(1, len(HOSTS)), courses)
def test_an_excluded_node_is_not_taken_back_before_its_time(
    chosen: Settings, size: int, course: list[tuple[Event, float, bool]]
) -> None:
    standing = beginning(chosen, size)
    now_s = 0.0
    since_s: dict[str, float] = {}
    for event, passed_s, progressed in course:
        now_s += passed_s
        decision = decide(chosen, standing, event, now_s=now_s, progressed=progressed)
        if isinstance(decision, End):
            return
        standing = decision.standing
        since_s |= {exclusion.host: exclusion.since_s for exclusion in standing.roster.excluded}
        in_use = {*standing.roster.active, *standing.roster.reserve}
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
    if isinstance(decision, Relaunch) and not chosen.exhaust_resources:
        assert len(decision.standing.roster.active) == chosen.nodes


@given(settings, st.integers(1, len(HOSTS)), st.lists(st.sampled_from(HOSTS), min_size=1))
def test_verdicts_alone_cause_at_most_one_relaunch_per_node_and_quarantine(
    chosen: Settings, size: int, accused: list[str]
) -> None:
    """Each relaunch costs a node that is not the primary, so it ends."""
    standing = beginning(chosen, size)
    spare = len(everyone(standing.roster)) - 1
    relaunches = 0
    for host in accused:
        decision = decide(chosen, standing, NodesAccused(frozenset({host})), now_s=0, progressed=True)
        if isinstance(decision, End):
            break
        relaunches += isinstance(decision, Relaunch)
        standing = decision.standing
    assert relaunches <= spare


@given(settings, st.integers(1, len(HOSTS)), events)
def test_a_report_leaves_the_running_program_its_nodes(chosen: Settings, size: int, event: Event) -> None:
    standing = beginning(chosen, size)
    decision = decide(chosen, standing, event, now_s=0, progressed=True)
    if isinstance(decision, Report):
        assert decision.standing.roster.active == standing.roster.active
