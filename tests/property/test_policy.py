"""What the restart policy promises for every course of events, not only for those we thought of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resilience.policy import (
    End,
    Event,
    NodeLost,
    NodesAccused,
    ProgramDied,
    ProgramEnded,
    Relaunch,
    Report,
    Roster,
    Settings,
    decide,
)

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
    st.builds(ProgramDied, st.integers(1, 15), st.integers(0, 3)),
    st.builds(ProgramEnded, st.integers(0, 255)),
)


def beginning(chosen: Settings, size: int) -> Roster:
    hosts = tuple(HOSTS[: max(size, chosen.nodes)])
    return Roster(hosts[: chosen.nodes], hosts[chosen.nodes :])


@given(settings, st.integers(1, len(HOSTS)), st.lists(events, max_size=30))
def test_a_job_keeps_its_primary_and_never_takes_an_excluded_node_back(
    chosen: Settings, size: int, course: list[Event]
) -> None:
    roster = beginning(chosen, size)
    everyone = {*roster.active, *roster.reserve}
    excluded: set[str] = set()
    for event in course:
        decision = decide(chosen, roster, event)
        if isinstance(decision, End):
            return
        assert decision.roster.primary == roster.primary
        roster = decision.roster
        excluded |= set(roster.excluded)
        assert set(roster.excluded) == excluded
        assert not excluded & {*roster.active, *roster.reserve}
        assert not {*roster.active} & {*roster.reserve}
        assert {*roster.active, *roster.reserve} <= everyone
        assert len(roster.active) <= chosen.nodes


@given(settings, st.integers(1, len(HOSTS)), events)
def test_nothing_is_relaunched_unless_asked_for(chosen: Settings, size: int, event: Event) -> None:
    decision = decide(chosen, beginning(chosen, size), event)
    assert chosen.resilient or not isinstance(decision, Relaunch)


@given(settings, st.integers(1, len(HOSTS)), events)
def test_fewer_nodes_than_asked_for_are_used_only_with_exhaust_resources(
    chosen: Settings, size: int, event: Event
) -> None:
    decision = decide(chosen, beginning(chosen, size), event)
    if isinstance(decision, Relaunch) and not chosen.exhaust_resources:
        assert len(decision.roster.active) == chosen.nodes


@given(settings, st.integers(1, len(HOSTS)), st.lists(st.sampled_from(HOSTS), min_size=1))
def test_verdicts_alone_cause_at_most_one_relaunch_per_node(chosen: Settings, size: int, accused: list[str]) -> None:
    """Each relaunch costs a node that is not the primary, so it ends."""
    roster = beginning(chosen, size)
    spare = len(roster.active) + len(roster.reserve) - 1
    relaunches = 0
    for host in accused:
        decision = decide(chosen, roster, NodesAccused(frozenset({host})))
        if isinstance(decision, End):
            break
        relaunches += isinstance(decision, Relaunch)
        roster = decision.roster
    assert relaunches <= spare


@given(settings, st.integers(1, len(HOSTS)), events)
def test_a_report_leaves_the_running_program_its_nodes(chosen: Settings, size: int, event: Event) -> None:
    roster = beginning(chosen, size)
    decision = decide(chosen, roster, event)
    if isinstance(decision, Report):
        assert decision.roster.active == roster.active
