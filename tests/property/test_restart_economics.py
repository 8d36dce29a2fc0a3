"""What the rule for restarts promises, whatever the incidents are."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.incidents import Incidents
from laggard.detectors.economics.launch_cost import LaunchCost
from laggard.detectors.economics.restart_cost import RestartCost, share_lost
from laggard.detectors.economics.restart_decision import Incident, Past, Tradeoff, decide
from laggard.kvstore.control import LaunchRecord, Signs

SLOWDOWNS = st.floats(1.01, 20.0)
COSTS_S = st.floats(1.0, 3600.0)
LENGTHS_S = st.floats(1.0, 50_000.0)
INCIDENTS = st.builds(Incident, slowdown=SLOWDOWNS, slow_s=LENGTHS_S, lost_s=LENGTHS_S)
PASTS = st.builds(
    Past,
    n_passed=st.integers(0, 20),
    longest_s=LENGTHS_S,
    lost_s=LENGTHS_S,
    span_s=LENGTHS_S,
    n_asked=st.integers(0, 3),
    n_in_vain=st.integers(0, 3),
    is_programs_own=st.booleans(),
)
TRADEOFFS = st.builds(
    Tradeoff,
    cost=st.builds(RestartCost, COSTS_S, st.none() | LENGTHS_S),
    n_nodes=st.integers(0, 64),
    n_reserve=st.none() | st.integers(0, 2),
)


SIGNS = st.builds(
    Signs, st.integers(0, 5), st.none() | st.floats(0, 1e6), st.none() | st.floats(0, 1e6), n_reserve=st.none()
)
LAUNCHES = st.builds(
    LaunchRecord,
    st.just(1),
    st.just(()),
    st.just(()),
    relaunch_s=st.none() | st.floats(0, 1e3),
    began_s=st.just(1000.0),
    commits=st.integers(0, 3),
    step=st.none() | st.floats(0, 1e6),
)


@given(LAUNCHES, st.lists(st.tuples(st.floats(0, 1e4), SIGNS), max_size=9))
def test_a_restart_never_costs_less_than_thirty_seconds_nor_more_than_the_launch_so_far_and_its_start(
    launch: LaunchRecord, seen: list[tuple[float, Signs]]
) -> None:
    cost, now_s = LaunchCost(launch), 1000.0
    for seconds, signs in seen:
        now_s += seconds
        cost.note(signs, now_s)
        again = LaunchCost(launch, cost.to_state())
        for price in (cost.price(now_s), again.price(now_s)):
            start_s = (launch.relaunch_s or 0.0) + max(60.0, now_s - 1000.0)
            assert 30.0 <= price.cost_s <= (start_s + now_s - 1000.0) * (1 + 1e-9)


def later(incident: Incident, seconds: float) -> Incident:
    lost_s = incident.lost_s + share_lost(incident.slowdown) * seconds
    return replace(incident, slow_s=incident.slow_s + seconds, lost_s=lost_s)


@given(INCIDENTS, PASTS, TRADEOFFS)
def test_a_decision_says_when_it_will_change(incident: Incident, past: Past, tradeoff: Tradeoff) -> None:
    decision = decide(incident, past, tradeoff)
    assert decision.restart == (decision.in_s <= 0)
    if math.isfinite(decision.in_s) and tradeoff.cost.remaining_s is None:
        assert decide(later(incident, decision.in_s + 0.01), past, tradeoff).restart
        if decision.in_s > 0.02:
            assert not decide(later(incident, decision.in_s - 0.01), past, tradeoff).restart


@given(INCIDENTS, PASTS, TRADEOFFS)
def test_who_wants_a_restart_at_once_gets_it(incident: Incident, past: Past, tradeoff: Tradeoff) -> None:
    assert decide(incident, past, replace(tradeoff, cost=RestartCost(0.0))).restart


@given(INCIDENTS, PASTS, TRADEOFFS)
def test_no_restart_is_made_that_cannot_earn_its_cost(incident: Incident, past: Past, tradeoff: Tradeoff) -> None:
    cost, share = tradeoff.cost, share_lost(incident.slowdown)
    fewer = tradeoff.n_reserve == 0 and tradeoff.n_nodes > 1
    if decide(incident, past, tradeoff).restart:
        assert cost.remaining_s is None or share * cost.remaining_s >= cost.cost_s
        assert not fewer or incident.slowdown > tradeoff.n_nodes / (tradeoff.n_nodes - 1)


@given(SLOWDOWNS, st.floats(30.0, 3600.0), LENGTHS_S)
def test_one_incident_loses_at_most_three_and_a_quarter_times_as_much_as_one_who_knows_its_length(
    slowdown: float, cost_s: float, length_s: float
) -> None:
    share = share_lost(slowdown)
    decision = decide(Incident(slowdown=slowdown, slow_s=0.0, lost_s=0.0), Past(), Tradeoff(cost=RestartCost(cost_s)))
    restarts = decision.in_s < length_s
    lost_s = share * min(decision.in_s, length_s) + cost_s * restarts
    assert lost_s <= 3.25 * min(share * length_s, cost_s) * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(13.0, 500.0), st.floats(1.02, 3.0)), max_size=60), st.floats(30.0, 300.0))
def test_incidents_that_come_again_lose_half_the_cost_before_a_restart_or_one_percent_of_the_time_if_alike(
    incidents: list[tuple[float, float]], cost_s: float
) -> None:
    memory, now_s, lost_s = Incidents(), 0.0, 0.0
    tradeoff = Tradeoff(cost=RestartCost(cost_s))
    for length_s, slowdown in incidents:
        share, now_s = share_lost(slowdown), now_s + 3600.0
        memory.begin(("n", "0"), slowdown, Episode(now_s, slowdown, share), now_s, identity="GPU", place="0/0")
        decision = memory.decide(("n", "0"), tradeoff, now_s)
        lost_s += share * min(length_s, decision.in_s)
        at_pace_s = max(3.4 * cost_s * now_s / 86_400, 0.01 * (now_s + 900))
        assert lost_s <= max(20, 0.45 * cost_s, at_pace_s) * (1 + 1e-9)
        if decision.in_s <= length_s:
            return
        memory.advance({("n", "0"): slowdown}, now_s + length_s)
        memory.advance({("n", "0"): None}, now_s + length_s)
