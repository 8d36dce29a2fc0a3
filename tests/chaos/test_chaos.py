"""A job survives a storm of kills: every committed increment is there exactly once, and nothing is left."""

from __future__ import annotations

from tests.chaos.plan import VICTIMS, plan_of
from tests.chaos.storm import storm

SEED = 6
N_FAULTS = 12


def test_a_plan_is_the_same_each_time_and_has_all_kinds_of_victims() -> None:
    plan = plan_of(SEED, N_FAULTS)
    assert plan_of(SEED, N_FAULTS) == plan
    assert sum(len(fault.victims) for fault in plan) == N_FAULTS
    assert {victim for fault in plan for victim in fault.victims} == {*VICTIMS}


def test_every_committed_increment_is_there_exactly_once_after_a_storm() -> None:
    outcome = storm(plan_of(SEED, N_FAULTS), SEED)
    assert outcome.killed.total() >= N_FAULTS / 2
    assert outcome.increments > N_FAULTS
