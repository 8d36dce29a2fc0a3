"""The healthy jobs of ``python -m benchmarks poisoned`` on a simulated clock: what decides is real. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from benchmarks.poisoned_jobs import SAVE_EVERY, Failure, Job, draw_healthy
from laggard.kvstore.checkpoints.complete import Checkpoint, Newest
from laggard.resilience.decision.events import (
    Event,
    JobStatus,
    NodeLost,
    NodeReturned,
    ProgramFailed,
    Relaunch,
    Settings,
)
from laggard.resilience.decision.failure import explain
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.row import EarlierLaunches, LaunchSpan


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take in a simulated job, in seconds, and how many steps it makes between two saves."""

    start_s: float
    step_s: float
    save_every: int
    reports_steps: bool


def draw_pace(chance: random.Random) -> Pace:
    """Return the pace of a job: from short steps of a small model to those of a large one."""
    return Pace(
        chance.uniform(5, 600), 10 ** chance.uniform(-1, 2), round(10 ** chance.uniform(0.5, 3)), chance.random() < 0.5
    )


class Simulated:
    """A healthy job on a simulated clock: the launches and their signs are made up, what decides is real."""

    def __init__(self, job: Job, pace: Pace) -> None:
        self._pace, self._job = pace, job
        self._settings = Settings(2, resilient=True, places_ranks=True)
        hosts = ("node1", "node2", "node3")
        self._status = JobStatus(Roster(hosts[:2], hosts[2:], primary=hosts[0]), 0.0)
        self._earlier = EarlierLaunches()
        self._now_s, self._saved, self._commits = 0.0, [0], 0
        self.relaunches, self.went_back = 0, False

    def run(self) -> bool:
        """Run it; return whether it ever goes back."""
        for _, failure in self._job.failures:
            if not self._fail(failure):
                break
        return self.went_back

    def _fail(self, failure: Failure) -> bool:
        pace, first = self._pace, self._saved[-1]
        # What is drawn for a live job of few steps is stretched: shortly after the start stays shortly after it.
        age = failure.at if failure.at < 3 else failure.at * pace.save_every // SAVE_EVERY
        ran_s = pace.start_s * (0.5 if age < 0 else 1.0) + max(0, age) * pace.step_s
        saves = [step for step in range(first + 1, first + age + 1) if step % pace.save_every == 0]
        span = LaunchSpan(
            ran_s, len(saves), float(first + age) if age > 0 and pace.reports_steps else None, resumed=self._commits > 0
        )
        self._now_s += ran_s
        self._saved += saves
        decision = decide(
            self._settings,
            self._status,
            self._event(failure, span, ran_s),
            now_s=self._now_s,
            progressed=self._earlier.made_progress(span),
        )
        self._earlier.add(span)
        self._commits += len(saves)
        if not isinstance(decision, Relaunch):
            return False
        self.relaunches += 1
        self.went_back |= bool(decision.goes_back)
        self._status = decision.status
        self._now_s += decision.wait_s
        self._return_nodes()
        return True

    def _event(self, failure: Failure, span: LaunchSpan, ran_s: float) -> Event:
        host = self._status.placed.active[failure.rank % len(self._status.roster.active)]
        if failure.words == "node lost" and host != self._status.roster.primary:
            return NodeLost(host)
        course = self._earlier.course(span)
        if span.is_soon and len(self._saved) > 2:
            newest, before = (Checkpoint(0, step, 1) for step in (self._saved[-1], self._saved[-2]))
            course = replace(course, saves=(Newest("checkpoint", newest, before),))
        code, lines = _end_of(failure.words)
        return ProgramFailed(
            explain([ProcessEnd(host, 1, code, self._now_s, ran_s, lines, rank=failure.rank)], {}), (), course
        )

    def _return_nodes(self) -> None:
        for host in self._status.roster.lost_hosts:
            decision = decide(self._settings, self._status, NodeReturned(host), now_s=self._now_s, progressed=False)
            if decision.status is not None:
                self._status = decision.status


def _end_of(words: str) -> tuple[int, tuple[str, ...]]:
    kind, _, text = words.partition(": ")
    if kind in ("signal", "node lost"):
        return {"SIGSEGV": -11, "SIGABRT": -6, "SIGTERM": -15}.get(text, -9), ()
    if kind == "exit":
        return int(text), ()
    trace = ("Traceback (most recent call last):", '  File "train.py", line 42, in step', "    fail()")
    return 1, (*trace, words)


def simulate(seed: int, n_jobs: int, *, own_words: bool) -> tuple[int, int, int]:
    """Return how many healthy jobs there were, relaunches in all of them, and jobs that went back."""
    relaunches, back = 0, 0
    for number in range(n_jobs):
        job = draw_healthy(seed, number, own_words=own_words)
        simulated = Simulated(job, draw_pace(random.Random(f"{seed} {number} pace")))
        back += simulated.run()
        relaunches += simulated.relaunches
    return n_jobs, relaunches, back
