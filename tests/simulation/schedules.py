"""Schedules: a seed decides the job, the program, the faults, and the order of all that happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from laggard.resilience.decision.events import Settings
from tests.simulation.faults import FAULTS, Fault, arm, heal
from tests.simulation.job import MAX_COMMANDS, Job, Plan
from tests.simulation.processes import Process
from tests.simulation.programs import Habits

__all__ = ["Outcome", "Schedule", "replay_command", "run"]

# After its last fault a job has this long to end. Only a wait for ever takes longer.
LIMIT_S = 900.0
# Then everything that was cut or frozen is so no more, and all that is left ends by itself: the longest lease is 300 s.
LEFT_S = 330.0
CLEAR_S = 15.0


@dataclass(frozen=True)
class Schedule:
    """A job and its faults."""

    plan: Plan
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """Return the schedule of a seed."""
        chance = random.Random(seed)
        hosts = tuple(f"n{number}" for number in range(1, chance.choice((2, 3, 3, 4)) + 1))
        resilient = chance.random() < 0.9
        hangs = resilient and chance.random() < 0.2  # otherwise a program that hangs is only reported
        per_node = chance.random() < 0.8
        settings = Settings(
            nodes=chance.randint(1, len(hosts)),
            resilient=resilient,
            exhaust_resources=chance.random() < 0.5,
            quarantine_s=chance.choice((15.0, 86400.0)),
            max_restarts=chance.choice((None, None, 2)),
            max_restarts_per_hour=20,
            on_failure="end" if chance.random() < 0.05 else "relaunch",
            backoff_s=chance.choice((0.5, 2.0)),
            give_up_after_s=chance.choice((30.0, 120.0)),
            places_ranks=per_node and chance.random() < 0.8,
            wait_for_nodes_s=chance.choice((0.0, 20.0, 60.0)),
        )
        habits = Habits(
            steps=chance.randint(2, 8),
            step_s=chance.choice((0.2, 0.5, 1.0)),
            sick_host=chance.choice(hosts) if chance.random() < 0.15 else "",
            sick_exit=chance.choice((-6, 1)),
            in_vain=chance.random() < 0.03,
            usage_error=chance.random() < 0.02,
            chance_of_bug=0.1 if chance.random() < 0.1 else 0.0,
            chance_of_hang=0.1 if hangs else 0.0,
            saving_s=chance.choice((0.1, 0.1, 0.5, 2.0, None)),
            leaves=chance.random() < 0.3,
            asks=0.15 if chance.random() < 0.2 else 0.0,
        )
        plan = Plan(
            hosts,
            settings,
            habits,
            grace_s=chance.choice((0.3, 1.0)),
            hang_timeout_s=5.0 if hangs else None,
            per_node=per_node,
            remote=chance.random() < 0.8,
        )
        names = tuple(name for name in FAULTS if hangs or name != "a rank is stopped")
        n_faults = chance.choice((0, 1, 1, 2, 2, 3, 4, 5))
        return cls(plan, tuple(Fault.draw(chance, names) for _ in range(n_faults)))


@dataclass
class Outcome:
    """What became of a schedule.

    Attributes
    ----------
    seed
        Its seed.
    failure
        What went wrong; None: nothing.
    exit_code
        Of the last command.
    events
        How many things happened.
    simulated_s
        How long it lasted, in simulated time.
    trace
        What happened, line by line.
    faults
        The faults that struck.
    """

    seed: int
    failure: str | None
    exit_code: int | None
    events: int
    simulated_s: float
    trace: list[str] = field(repr=False)
    faults: list[str] = field(default_factory=list)


def replay_command(seed: int) -> str:
    """Return the command that shows what happens in a schedule."""
    return f"python -m benchmarks simulation --replay {seed}"


def run(seed: int, directory: Path, schedule: Schedule | None = None) -> Outcome:
    """Simulate a schedule; within `simulated_world`, whose folder is given."""
    schedule = schedule or Schedule.of(seed)
    job = Job(schedule.plan, seed, directory)
    job.scheduler.drive(Process(job.primary, job.primary.init, "driver", {}), lambda: _drive(job, schedule.faults))
    return Outcome(
        seed,
        job.scheduler.failure,
        job.exit_code,
        job.scheduler.events,
        job.scheduler.now_s,
        job.judge.trace,
        job.judge.faults,
    )


def _drive(job: Job, faults: tuple[Fault, ...]) -> None:
    job.start_command()
    arm(job, faults)
    while not _wait_for_command(job) and job.run_again_after_s is not None:
        job.scheduler.block(job.run_again_after_s)
        if job.commands >= MAX_COMMANDS:
            break
        job.start_command()
    if job.scheduler.failure is not None:
        return
    job.judge.check_end(job.exit_code, job.error)
    _wait(job, CLEAR_S, lambda: not job.left_behind())
    job.judge.check_left(job.left_behind())
    heal(job)
    _wait(job, LEFT_S, lambda: not job.in_care())
    job.judge.check_left(job.in_care())
    job.judge.check_commits()


def _wait_for_command(job: Job) -> bool:
    """Wait for the command; return whether that was the end of the job."""
    until_s = job.scheduler.now_s + LIMIT_S
    while job.exit_code is None and job.scheduler.failure is None:
        if job.scheduler.now_s >= until_s:
            job.judge.fail("the job does not end")
            return True
        job.scheduler.block(until_s - job.scheduler.now_s)
    return job.scheduler.failure is not None or job.run_again_after_s is None


def _wait(job: Job, deadline_s: float, done: Callable[[], bool]) -> None:
    until_s = job.scheduler.now_s + deadline_s
    while not done() and job.scheduler.now_s < until_s and job.scheduler.failure is None:
        job.scheduler.block(0.5)
