"""A job survives a storm of faults: every committed increment is stored exactly once, and nothing is left behind."""

from __future__ import annotations

import pytest

from tests.long.plan import BLOWS, WITH_RAY, plan_of
from tests.long.storm import storm

# Two hundred faults in total, or as many as this machine manages in time.
WITH_RAY_FAULTS, WITH_RAY_S = 30, 120.0
RANKS_FAULTS, RANKS_S = 170, 220.0
SITE_FAULTS, SITE_S = 30, 60.0
FEWEST = 10


def test_a_plan_is_the_same_each_time_and_has_all_kinds_of_victims() -> None:
    plan = plan_of(1, RANKS_FAULTS, WITH_RAY)
    assert plan_of(1, RANKS_FAULTS, WITH_RAY) == plan
    assert sum(len(fault.victims) for fault in plan) == RANKS_FAULTS
    assert {victim for fault in plan for victim in fault.victims} == WITH_RAY.keys()
    assert {blow for fault in plan for blow in fault.blows} == BLOWS.keys()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ray", "site", "n_faults", "longest_s"),
    [
        (True, "", WITH_RAY_FAULTS, WITH_RAY_S),
        (False, "", RANKS_FAULTS, RANKS_S),
        (False, "valkey", SITE_FAULTS, SITE_S),
        (False, "redis", SITE_FAULTS, SITE_S),
    ],
)
def test_every_committed_increment_is_there_exactly_once_after_a_storm(
    *, ray: bool, site: str, n_faults: int, longest_s: float
) -> None:
    outcome = storm(1, n_faults, longest_s, ray=ray, site=site)
    print(f"hit: {outcome.hit}, {outcome.blows}; {outcome.launches} launches, {outcome.increments} increments")
    assert outcome.hit.total() >= FEWEST
    assert outcome.increments > outcome.hit.total()
