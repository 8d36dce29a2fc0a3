"""Whether to restart for a slow device: one row for each reason to, or not to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from laggard.detectors import wording
from laggard.detectors.economics.restart_cost import RestartCost, share_lost
from laggard.detectors.economics.restart_decision import Incident, Past, Tradeoff, decide

NEVER = math.inf
HUNDRED = Tradeoff(cost=RestartCost(100.0))
STATED = Tradeoff(cost=RestartCost(100.0), is_stated=True)


def incident(slowdown: float = 1.25, slow_s: float = 40.0, lost_s: float | None = None) -> Incident:
    """Return an incident that has lost as much as it says, or a steady one: a fifth of the time at 1.25."""
    return Incident(slowdown=slowdown, slow_s=slow_s, lost_s=(1 - 1 / slowdown) * slow_s if lost_s is None else lost_s)


def test_no_reading_is_so_slow_that_nothing_of_the_jobs_time_is_left() -> None:
    assert 0.999 < share_lost(1e24) < 1


def at_times(lost_s: float, span_s: float) -> Incident:
    """Return an incident of a device that is slow again and again, and well in between."""
    return Incident(slowdown=1.25, slow_s=40.0, lost_s=lost_s, span_s=span_s, at_times=True)


def fewer(n_nodes: int, remaining_s: float | None = None, n_reserve: int = 0) -> Tradeoff:
    """Return a restart that would cost 100 s and one of so many nodes, if none is in reserve."""
    return Tradeoff(cost=RestartCost(100.0, remaining_s), n_nodes=n_nodes, n_reserve=n_reserve)


def few(n_reserve: int) -> Tradeoff:
    return fewer(16, n_reserve=n_reserve)


@pytest.mark.parametrize(
    ("present", "past", "tradeoff", "in_s", "why"),
    [
        # one incident
        (incident(), Past(), Tradeoff(cost=RestartCost(0.0)), 0.0, ""),
        (incident(), Past(), HUNDRED, (45 - 8) / 0.2, ""),
        (incident(), Past(), Tradeoff(cost=RestartCost(30.0)), (30 - 8) / 0.2, ""),
        (incident(), Past(), Tradeoff(cost=RestartCost(10.0)), (10 - 8) / 0.2, ""),
        (incident(), Past(), STATED, (32 - 8) / 0.2, ""),
        (incident(), Past(), Tradeoff(cost=RestartCost(200.0), is_stated=True), (45 - 8) / 0.2, ""),
        (incident(slow_s=1000.0), Past(), HUNDRED, 0.0, "likely to lose more"),
        (incident(lost_s=46.0), Past(), HUNDRED, 0.0, "likely to lose more"),
        (incident(slowdown=1.0, lost_s=500.0), Past(), HUNDRED, NEVER, "as fast as ever"),
        (incident(slow_s=1e4), Past(), Tradeoff(cost=RestartCost(100.0), min_slowdown=1.25), 0.0, "likely"),
        (incident(slow_s=1e4), Past(), Tradeoff(cost=RestartCost(100.0), min_slowdown=1.26), NEVER, "hardly faster"),
        # what remains
        (incident(slow_s=1000.0), Past(), Tradeoff(cost=RestartCost(100.0, remaining_s=499.0)), NEVER, "in the 499 s"),
        (incident(slow_s=1000.0), Past(), Tradeoff(cost=RestartCost(100.0, remaining_s=501.0)), 0.0, "likely"),
        (incident(), Past(), Tradeoff(cost=RestartCost(0.0, remaining_s=0.0)), 0.0, ""),
        (incident(), Past(), Tradeoff(cost=RestartCost(100.0, remaining_s=0.0)), NEVER, "in the 0 s"),
        # fewer nodes: slower than to stay, or the node is missed for a day, or for what remains
        (incident(1.33, 1e6), Past(), fewer(4), NEVER, "do more than 3"),
        (incident(1.34, 1e6), Past(), fewer(4), 0.0, "likely"),
        (incident(1.25, 1e6), Past(), fewer(5), NEVER, "more than 4"),
        (incident(1.99, 1e6), Past(), fewer(2), NEVER, "do more than 1"),
        (incident(1.06, 1e6), Past(), fewer(16), NEVER, "16 nodes"),
        (incident(1.06, 1e6), Past(), fewer(16, n_reserve=1), 0.0, "likely"),
        (incident(1.06, 1e6), Past(), fewer(1), 0.0, "likely"),
        (incident(1.06, 1.0), Past(), Tradeoff(cost=RestartCost(0.0), n_nodes=16, n_reserve=0), 0.0, ""),
        (incident(1.25), Past(), fewer(16), (0.45 * (100 + 5400) - 8) / 0.2, "one node less would lose 5400 s more"),
        (
            incident(1.25),
            Past(),
            fewer(16, 32_000.0),
            (0.45 * (100 + 2000) - 8) / 0.2,
            "one node less would lose 2000 s",
        ),
        (incident(1.25, 1e6), Past(), fewer(8, 1300.0), NEVER, "in the 1300 s"),  # 262.5 s to pay, 260 s to gain
        # a phase
        (incident(slow_s=400.0), Past(n_passed=3, longest_s=400.0, span_s=1e5), HUNDRED, 200.0, "looks like a phase"),
        (incident(slow_s=400.0), Past(n_passed=2, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=601.0), Past(n_passed=3, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=600.0), Past(n_passed=3, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=10.0), Past(n_passed=3, longest_s=20.0), HUNDRED, (32 - 2) / 0.2, "together"),
        # all together: half as much as one alone, at a pace of 3.4 times the cost in a day
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=25.0), HUNDRED, 0.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=23.0), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=38.0, n_asked=1), HUNDRED, 0.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=36.0, n_asked=1), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=36.0, n_in_vain=1), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=161.0, span_s=43_200.0), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=331.0, span_s=1e6), HUNDRED, 5.0, "together"),
        (incident(), Past(lost_s=1e6), HUNDRED, (45 - 8) / 0.2, ""),  # of none that ended by itself
        # as long as those of others that ended by themselves: not alone, and together at 2 % of the time
        (replace(incident(slow_s=1000.0), is_usual=True), Past(), HUNDRED, NEVER, "ended by themselves"),
        (
            replace(incident(), is_usual=True),
            Past(n_passed=9, longest_s=1e6, lost_s=28.0, span_s=1000.0),
            HUNDRED,
            (38 - 36) / 0.2,
            "together",
        ),
        # as long as one another: a phase, at less than 1 % of the time
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=50.0, span_s=5100.0, are_alike=True),
            HUNDRED,
            (60 - 58) / 0.2,
            "together",
        ),
        (incident(slow_s=1000.0), Past(n_passed=9, lost_s=1e6), HUNDRED, 0.0, "likely"),  # either is reason enough
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=23.0),
            Tradeoff(cost=RestartCost(10.0)),  # 32 s at least if it is to find out
            5.0,
            "together",
        ),
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=161.0, span_s=10_000.0),
            Tradeoff(cost=RestartCost(100.0, remaining_s=20_000.0)),  # at this pace it loses twice as much again
            5.0,
            "together",
        ),
        # at more than 2 % of the time, 1.6 times the cost in a day, of which half counts if it is only stated
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=873.0, span_s=43_200.0),
            Tradeoff(cost=RestartCost(1000.0)),
            5.0,
            "together",
        ),
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=15_991.0, span_s=43_200.0),
            Tradeoff(cost=RestartCost(20_000.0)),
            5.0,
            "together",
        ),
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=7991.0, span_s=43_200.0),
            Tradeoff(cost=RestartCost(20_000.0), is_stated=True),
            5.0,
            "together",
        ),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=161.0, span_s=43_200.0), STATED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=36.0, span_s=2000.0), HUNDRED, 5.0, "together"),
        # of one or two nodes in reserve none is given to find out about what loses less than 2 % of the time
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=209.0, span_s=10_000.0), few(1), 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=209.0, span_s=10_000.0), few(2), 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=1e6, lost_s=209.0, span_s=10_000.0), few(3), 0.0, "together"),
        # slow again and again
        (at_times(lost_s=30.0, span_s=300.0), Past(), HUNDRED, 15 / 0.1, "together"),
        (at_times(lost_s=30.0, span_s=300.0), Past(span_s=600.0), HUNDRED, 15 / 0.05, "together"),
        (at_times(lost_s=30.0, span_s=0.5), Past(), HUNDRED, 15 / 30, "together"),  # a second at least
        (at_times(lost_s=45.0, span_s=300.0), Past(), HUNDRED, 0.0, "together"),
        (at_times(lost_s=0.0, span_s=300.0), Past(), HUNDRED, 45 / 1e-6, "together"),
        (at_times(lost_s=30.0, span_s=300.0), Past(is_programs_own=True), HUNDRED, NEVER, ""),
        # the program's own
        (incident(), Past(is_programs_own=True, n_passed=9, longest_s=50.0, lost_s=1e6), HUNDRED, 37 / 0.2, ""),
        (incident(slow_s=500.0), Past(is_programs_own=True, longest_s=400.0), HUNDRED, 100.0, "looks like a phase"),
        (incident(slow_s=601.0), Past(is_programs_own=True, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=400.0), Past(n_in_vain=1), HUNDRED, (90 - 80) / 0.2, "did not help"),
        (incident(slow_s=1400.0), Past(n_in_vain=2), HUNDRED, 0.0, "did not help"),
    ],
)
def test_a_restart_is_due_when_its_row_says_so(
    present: Incident, past: Past, tradeoff: Tradeoff, in_s: float, why: str
) -> None:
    decision = decide(present, past, tradeoff)
    assert decision.restart == (in_s == 0)
    assert decision.in_s == pytest.approx(in_s, abs=0.01)
    words = "" if decision.why is None else wording.reason(decision.why)
    assert why in words
    assert bool(why) == bool(words)


@pytest.mark.parametrize(
    ("cost", "pays"),
    [
        (RestartCost(100.0), True),
        (RestartCost(0.0, remaining_s=0.0), True),
        (RestartCost(100.0, remaining_s=499.0), False),
        (RestartCost(100.0, remaining_s=501.0), True),
    ],
)
def test_a_restart_can_pay_if_the_rest_of_the_job_would_lose_as_much(cost: RestartCost, pays: bool) -> None:
    assert cost.can_pay(1.25) == pays


def test_a_cost_may_be_given_as_a_number_of_seconds() -> None:
    assert [RestartCost.of(given) for given in (None, 0, 2.5, RestartCost(7.0, 8.0))] == [
        None,
        RestartCost(0),
        RestartCost(2.5),
        RestartCost(7.0, 8.0),
    ]
