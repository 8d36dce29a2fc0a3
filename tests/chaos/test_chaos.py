"""A job survives a storm of kills: every committed increment is there exactly once, and nothing is left."""

from __future__ import annotations

import pytest

from tests.chaos.plan import WITH_RAY, plan_of
from tests.chaos.storm import storm

N_FAULTS = 100
# As many of them as this machine is quick enough for.
LONGEST_S = 80.0
FEWEST = 10


def test_a_plan_is_the_same_each_time_and_has_all_kinds_of_victims() -> None:
    plan = plan_of(1, N_FAULTS, WITH_RAY)
    assert plan_of(1, N_FAULTS, WITH_RAY) == plan
    assert sum(len(fault.victims) for fault in plan) == N_FAULTS
    assert {victim for fault in plan for victim in fault.victims} == WITH_RAY.keys()


@pytest.mark.parametrize("ray", [True, False])
def test_every_committed_increment_is_there_exactly_once_after_a_storm(*, ray: bool) -> None:
    outcome = storm(1, N_FAULTS, LONGEST_S, ray=ray)
    print(f"killed: {outcome.killed}; {outcome.launches} launches, {outcome.increments} increments")
    assert outcome.killed.total() >= FEWEST
    assert outcome.increments > outcome.killed.total()
