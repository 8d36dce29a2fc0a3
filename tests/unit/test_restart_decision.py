"""Whether to restart for a slow device: one row for each reason to, or not to."""

from __future__ import annotations

import math

import pytest

from laggard.detectors import wording
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restart_decision import Incident, Past, Tradeoff, decide

NEVER = math.inf
HUNDRED = Tradeoff(cost=RestartCost(100.0))


def incident(slowdown: float = 1.25, slow_s: float = 40.0, lost_s: float | None = None) -> Incident:
    """Return an incident that has lost as much as it says, or a steady one: a fifth of the time at 1.25."""
    return Incident(slowdown=slowdown, slow_s=slow_s, lost_s=(1 - 1 / slowdown) * slow_s if lost_s is None else lost_s)


def at_times(lost_s: float, span_s: float) -> Incident:
    """Return an incident of a device that is slow again and again, and well in between."""
    return Incident(slowdown=1.25, slow_s=40.0, lost_s=lost_s, span_s=span_s, at_times=True)


@pytest.mark.parametrize(
    ("present", "past", "tradeoff", "in_s", "why"),
    [
        # one incident
        (incident(), Past(), Tradeoff(cost=RestartCost(0.0)), 0.0, ""),
        (incident(), Past(), HUNDRED, (200 / 3 - 8) / 0.2, ""),
        (incident(slow_s=1000.0), Past(), HUNDRED, 0.0, "likely to lose more"),
        (incident(lost_s=67.0), Past(), HUNDRED, 0.0, "likely to lose more"),
        (incident(slowdown=1.0, lost_s=500.0), Past(), HUNDRED, NEVER, "as fast as ever"),
        (incident(slow_s=1e4), Past(), Tradeoff(cost=RestartCost(100.0), min_slowdown=1.25), 0.0, "likely"),
        (incident(slow_s=1e4), Past(), Tradeoff(cost=RestartCost(100.0), min_slowdown=1.26), NEVER, "hardly faster"),
        # what remains
        (incident(slow_s=1000.0), Past(), Tradeoff(cost=RestartCost(100.0, remaining_s=499.0)), NEVER, "in the 499 s"),
        (incident(slow_s=1000.0), Past(), Tradeoff(cost=RestartCost(100.0, remaining_s=501.0)), 0.0, "likely"),
        (incident(), Past(), Tradeoff(cost=RestartCost(0.0, remaining_s=0.0)), 0.0, ""),
        (incident(), Past(), Tradeoff(cost=RestartCost(100.0, remaining_s=0.0)), NEVER, "in the 0 s"),
        # fewer nodes
        (
            incident(1.33, 1000.0),
            Past(),
            Tradeoff(cost=RestartCost(1.0), n_nodes=4, n_reserve=0),
            NEVER,
            "do more than 3",
        ),
        (incident(1.34, 1000.0), Past(), Tradeoff(cost=RestartCost(1.0), n_nodes=4, n_reserve=0), 0.0, "likely"),
        (incident(1.25, 1000.0), Past(), Tradeoff(cost=RestartCost(1.0), n_nodes=5, n_reserve=0), NEVER, "more than 4"),
        (
            incident(1.99, 1000.0),
            Past(),
            Tradeoff(cost=RestartCost(1.0), n_nodes=2, n_reserve=0),
            NEVER,
            "do more than 1",
        ),
        (incident(1.06, 1e4), Past(), Tradeoff(cost=RestartCost(1.0), n_nodes=16, n_reserve=0), NEVER, "16 nodes"),
        (incident(1.06, 1e4), Past(), Tradeoff(cost=RestartCost(1.0), n_nodes=16, n_reserve=1), 0.0, "likely"),
        (incident(1.06, 1e4), Past(), Tradeoff(cost=RestartCost(1.0), n_nodes=1, n_reserve=0), 0.0, "likely"),
        (incident(1.06, 1.0), Past(), Tradeoff(cost=RestartCost(0.0), n_nodes=16, n_reserve=0), 0.0, ""),
        # a phase
        (incident(slow_s=400.0), Past(n_passed=3, longest_s=400.0), HUNDRED, 200.0, "looks like a phase"),
        (incident(slow_s=400.0), Past(n_passed=2, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=601.0), Past(n_passed=3, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=600.0), Past(n_passed=3, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=10.0), Past(n_passed=3, longest_s=20.0), HUNDRED, (200 / 3 - 2) / 0.2, ""),
        # all together
        (incident(), Past(n_passed=9, longest_s=50.0, lost_s=292.0), HUNDRED, 0.0, "together"),
        (incident(), Past(n_passed=9, longest_s=50.0, lost_s=291.0), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=50.0, lost_s=592.0, n_asked=1), HUNDRED, 0.0, "together"),
        (incident(), Past(n_passed=9, longest_s=50.0, lost_s=591.0, n_asked=1), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=9, longest_s=50.0, lost_s=591.0, n_in_vain=1), HUNDRED, 5.0, "together"),
        (incident(), Past(n_passed=3, longest_s=1e6), HUNDRED, 292 / 0.2, "together"),
        (incident(), Past(lost_s=1e6), HUNDRED, (200 / 3 - 8) / 0.2, ""),  # of none that ended by itself
        (incident(slow_s=1000.0), Past(n_passed=9, lost_s=1e6), HUNDRED, 0.0, "likely"),  # either is reason enough
        (
            incident(),
            Past(n_passed=9, longest_s=1e6, lost_s=81.0),
            Tradeoff(cost=RestartCost(10.0)),  # three times 30 s are lost before one restart to find out
            5.0,
            "together",
        ),
        # slow again and again
        (at_times(lost_s=30.0, span_s=300.0), Past(), HUNDRED, 270 / 0.1, "together"),
        (at_times(lost_s=30.0, span_s=300.0), Past(span_s=600.0), HUNDRED, 270 / 0.05, "together"),
        (at_times(lost_s=30.0, span_s=0.5), Past(), HUNDRED, 270 / 30, "together"),  # a second at least
        (at_times(lost_s=300.0, span_s=300.0), Past(), HUNDRED, 0.0, "together"),
        (at_times(lost_s=0.0, span_s=300.0), Past(), HUNDRED, 300 / 1e-6, "together"),
        (at_times(lost_s=30.0, span_s=300.0), Past(is_programs_own=True), HUNDRED, NEVER, ""),
        (
            incident(),
            Past(n_passed=9, longest_s=50.0, lost_s=1791.0),
            Tradeoff(cost=RestartCost(60.0), is_measured=False),
            5.0,
            "together",
        ),
        (
            incident(),
            Past(n_passed=9, longest_s=50.0, lost_s=992.0, span_s=10_000.0),  # a tenth of the time
            Tradeoff(cost=RestartCost(100.0, remaining_s=999.0)),
            (200 / 3 - 8) / 0.2,
            "",
        ),
        (
            incident(),
            Past(n_passed=9, longest_s=50.0, lost_s=992.0, span_s=10_000.0),
            Tradeoff(cost=RestartCost(100.0, remaining_s=1000.0)),
            0.0,
            "together",
        ),
        # the program's own
        (incident(), Past(is_programs_own=True, n_passed=9, longest_s=50.0, lost_s=1e6), HUNDRED, 293.33, ""),
        (incident(slow_s=500.0), Past(is_programs_own=True, longest_s=400.0), HUNDRED, 100.0, "looks like a phase"),
        (incident(slow_s=601.0), Past(is_programs_own=True, longest_s=400.0), HUNDRED, 0.0, "likely"),
        (incident(slow_s=400.0), Past(n_in_vain=1), HUNDRED, (400 / 3 - 80) / 0.2, "did not help"),
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
