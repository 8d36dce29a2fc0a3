"""Ten thousand schedules of faults for the real controller on simulated machines, and faults at each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.faults import FAULTS, Fault
from tests.simulation.job import simulated_world
from tests.simulation.mutants import simple_schedule
from tests.simulation.schedules import Outcome, Schedule, replay_command, run

N_SCHEDULES = 10_000
N_PARTS = 10
# A job that relaunches once or twice makes about so many steps.
STEPS = range(1, 200, 4)


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    with simulated_world() as directory:
        yield directory


def check(outcome: Outcome) -> None:
    assert outcome.failure is None, f"{outcome.failure}\n{replay_command(outcome.seed)}\n" + "\n".join(outcome.trace)


@pytest.mark.parametrize("part", range(N_PARTS))
def test_what_must_always_hold_does_in_every_schedule(part: int, world: Path) -> None:
    for seed in range(part, N_SCHEDULES, N_PARTS):
        check(run(seed, world))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("length_s", [1.0, 70.0])
def test_each_kind_of_fault_may_strike_at_each_step(fault: str, length_s: float, world: Path) -> None:
    relaunches = simple_schedule(asks=0.4, leaves=True, hang_timeout_s=5.0)
    for step in STEPS:
        struck = Fault(fault, 0.0, step, length_s, number=1 + step)
        check(run(step, world, Schedule(relaunches.plan, (struck,))))
