"""The real controller and the real agents on simulated machines: what must hold for every schedule of faults.

`tests/long/test_simulation.py` runs many more schedules.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.faults import CLOCK_STEPS_S, FAULTS, Fault
from tests.simulation.job import simulated_world
from tests.simulation.mutants import MUTANTS, simple_schedule
from tests.simulation.schedules import Outcome, Schedule, replay_command, run

N_SCHEDULES = 40
# Steps of the controller at which each kind of fault strikes: in the first launch, in a relaunch, and after it.
STEPS = (5, 95)
# Each of these found a bug in code that had passed every test.
FOUND = {
    "a job that ends because of a lost node clears that node of what its killed agent has left": simple_schedule(
        ("an agent is killed", 1.0, None), leaves=True, resilient=False
    ),
    "what a program has left on the primary ends though its controller was killed": simple_schedule(
        ("the controller is killed", 1.0, None), leaves=True, per_node=False
    ),
    "a node that ends the old launch too slowly is lost, not the job": simple_schedule(
        ("the network is slow", 0.8, 20.0), ("a rank cannot be killed", 0.5, None), steps=12
    ),
    "an agent that hangs in the kernel is not waited for": simple_schedule(
        ("an agent hangs in the kernel", 1.0, None), leaves=True
    ),
    "a second Ctrl-C ends the command also while the kernel holds a process": simple_schedule(
        ("a rank cannot be killed", 1.0, None),
        ("the job is stopped", 5.0, None),
        ("the job is stopped", 2.0, None),
        nodes=1,
        remote=False,
        steps=20,
    ),
    "a controller that was stopped while the server was gone waits for it": simple_schedule(
        ("the state server is killed", 1.0, None), ("the controller is stopped", 0.2, 70.0), steps=12
    ),
}
REPLAY = """
import sys
from tests.simulation.job import simulated_world
from tests.simulation.schedules import run
with simulated_world() as directory:
    for seed in map(int, sys.argv[1:]):
        outcome = run(seed, directory)
        print(outcome.events, outcome.trace)
"""


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    with simulated_world() as directory:
        yield directory


def check(outcome: Outcome) -> None:
    assert outcome.failure is None, f"{outcome.failure}\n{replay_command(outcome.seed)}\n" + "\n".join(outcome.trace)


def test_what_must_always_hold_does_in_every_schedule(world: Path) -> None:
    for seed in range(N_SCHEDULES):
        check(run(seed, world))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_fault_may_strike_at_any_step(fault: str, world: Path) -> None:
    relaunches = simple_schedule(asks=0.4, leaves=True, hang_timeout_s=5.0)
    for step in STEPS:
        struck = Fault(fault, 0.0, step, length_s=70.0, number=1 + step)
        check(run(step, world, Schedule(relaunches.plan, (struck,))))


@pytest.mark.parametrize("name", FOUND)
def test_no_bug_that_the_simulation_has_found_comes_back(name: str, world: Path) -> None:
    for seed in range(2):
        check(run(seed, world, FOUND[name]))


@pytest.mark.parametrize("back_after_s", [12.0, None])
def test_a_job_waits_for_a_lost_node_for_as_long_although_the_clock_is_set(
    back_after_s: float | None, world: Path
) -> None:
    cut = simple_schedule(
        ("the network is cut", 1.0, back_after_s),
        hosts=("n1", "n2"),
        steps=12,
        exhaust_resources=False,
        wait_for_nodes_s=60.0,
    )
    undisturbed = run(2, world, cut)
    check(undisturbed)
    assert undisturbed.exit_code == (69 if back_after_s is None else 0)
    for number in range(len(CLOCK_STEPS_S)):
        clock_set = Fault("the clock is set", 8.0, 0, None, number)
        outcome = run(2, world, Schedule(cut.plan, (*cut.faults, clock_set)))
        check(outcome)
        assert outcome.exit_code == undisturbed.exit_code
        assert outcome.simulated_s < 90.0


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_what_a_broken_controller_does(name: str, world: Path) -> None:
    mutant = MUTANTS[name]
    with mutant.breaks():
        outcomes = (run(seed, world, mutant.schedule) for seed in range(60))
        complaint = next((outcome.failure for outcome in outcomes if outcome.failure is not None), "none")
    assert re.search(mutant.complaint, complaint)


def test_the_schedules_of_the_broken_controllers_are_good_ones_for_the_real_one(world: Path) -> None:
    for mutant in MUTANTS.values():
        check(run(0, world, mutant.schedule))


def test_a_seed_gives_the_same_course_of_events_in_every_process() -> None:
    def replay(hash_seed: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", REPLAY, *map(str, range(5))]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with replay("1") as one, replay("2") as other:
        course, _ = one.communicate()
        assert course == other.communicate()[0] != ""
