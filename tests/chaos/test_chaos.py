"""A job survives a storm of kills: every committed increment is there exactly once, and nothing is left."""

from __future__ import annotations

import pytest

from tests.chaos.plan import VICTIMS, plan_of
from tests.chaos.storm import storm

N_FAULTS = 100
# As many of them as this machine is quick enough for; two storms of 100 faults where nothing else runs.
LONGEST_S = 115.0
FEWEST = 10


def test_a_plan_is_the_same_each_time_and_has_all_kinds_of_victims() -> None:
    plan = plan_of(1, N_FAULTS)
    assert plan_of(1, N_FAULTS) == plan
    assert sum(len(fault.victims) for fault in plan) == N_FAULTS
    assert {victim for fault in plan for victim in fault.victims} == {*VICTIMS}


@pytest.mark.parametrize("seed", [1, 2])
def test_every_committed_increment_is_there_exactly_once_after_a_storm(seed: int) -> None:
    outcome = storm(plan_of(seed, N_FAULTS), seed, LONGEST_S)
    print(f"killed: {outcome.killed}; {outcome.launches} launches, {outcome.increments} increments")
    assert outcome.killed.total() >= FEWEST
    assert outcome.increments > outcome.killed.total()
