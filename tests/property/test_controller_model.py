"""The controller's life, explored to its end: all orders of a few faults, at every step, two at once, in restarts too.

The policy is the real one; the controller around it is a small model of
:mod:`laggard.resilience.controller.controller`, step by step, so that a fault can come in between any two of them.
Breadth first, so a complaint shows a shortest course of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.policy import (
    Decision,
    End,
    Event,
    JobStatus,
    NodeLost,
    NodeReturned,
    NodesAccused,
    NodesMissing,
    ProgramFailed,
    Relaunch,
    Report,
    Settings,
    begin,
    decide,
)
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.strikes import Strike

HOSTS = ("n1", "n2", "n3")
FAILED = ProgramFailed(
    Failure(
        host="n2",
        rank=None,
        pid=4211,
        exit_code=-9,
        job_exit_code=137,
        ended_s=0.0,
        ran_s=0.0,
        quote="",
        cause="",
        kind="unknown",
        response="relaunch",
        fingerprint="-9",
        subject="the program on n2",
    )
)
STRUCK = ProgramFailed(replace(FAILED.failure, response="strike"))
QUARANTINE_S = 1
LAST_S = 2
# With so few faults no course is longer, unless it is endless.
MAX_LAUNCH = 12

Process = tuple[int, int]
"""Launch and number of a start of the program: its driver, or what is left of it."""


class WrongError(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True)
class World:
    """All that there is: the controller's memory, what is on disk, the processes, and the faults to come."""

    status: JobStatus
    phase: Literal["serving", "stopping", "fencing", "ended"] = "serving"
    fence: int = 0
    starts: int = 0
    program: Process | None = None
    leftovers: frozenset[Process] = frozenset()
    first_start: int = 0  # of this controller: the one before it may have left something that nobody sweeps
    nodes: frozenset[str] = frozenset(HOSTS)
    dead: frozenset[str] = frozenset()
    event: Event | None = None
    progressed: bool = False
    remembered: tuple[Exclusion, ...] = ()
    now_s: int = 0
    faults: int = 2
    convicted: frozenset[tuple[str, int]] = frozenset()  # who must not be used, since when: the judge's own notes

    @property
    def roster(self) -> Roster:
        return self.status.roster


class Model:
    """The controller's steps; a subclass may do one of them wrong."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def decide(self, world: World, event: Event) -> Decision:
        return decide(self.settings, world.status, event, now_s=world.now_s, progressed=world.progressed)

    def remember(self, world: World, status: JobStatus) -> World:
        # without a limit on restarts nobody looks at when they were, nor here at when the strikes were and at how long
        # to wait; worlds that differ in nothing else are one
        struck = {strike.host for strike in status.strikes} & {*status.roster.active}
        strikes = tuple(Strike(host, 0.0) for host in sorted(struck))
        status = replace(status, relaunched_s=(), launched_s=0.0, strikes=strikes, failures_in_a_row=0, last_failure="")
        roster = status.roster
        return replace(world, status=status, remembered=(*roster.excluded, *roster.past))

    def fence(self, world: World) -> World:
        return replace(world, fence=world.fence + 1)

    def sweep(self, world: World) -> World:
        return replace(world, leftovers=frozenset(p for p in world.leftovers if p[1] < world.first_start))

    def begin(self, world: World) -> World:
        """Run the command again in the same state directory."""
        begun = begin(self.settings, HOSTS, world.remembered, world.now_s)
        world = replace(world, nodes=frozenset(HOSTS), dead=frozenset(), event=None, progressed=False)
        if isinstance(begun, End):
            return replace(world, phase="ended")
        return replace(world, status=replace(begun, launched_s=0.0), phase="fencing", first_start=world.starts)

    def step(self, world: World) -> World | None:
        """Do the controller's next step; None where it has nothing to do."""
        if world.phase == "ended":
            return None
        if world.phase == "stopping":
            leftovers = world.leftovers | ({world.program} if world.program else frozenset())
            phase: Literal["fencing", "serving"] = "fencing" if world.program else "serving"
            return replace(world, phase=phase, program=None, leftovers=leftovers)
        if world.phase == "fencing":
            return replace(self.fence(world), phase="serving")
        lost = sorted(world.nodes & world.dead)
        if world.program is None and not lost and world.event is None:
            waits_since_s = world.status.waits_since_s
            return self.start(self.sweep(world)) if waits_since_s is None else None
        event = NodeLost(lost[0]) if lost else world.event
        return None if event is None else self.act(replace(world, event=world.event if lost else None), event)

    def start(self, world: World) -> World:
        process = (world.fence, world.starts)
        return replace(world, program=process, starts=world.starts + 1, progressed=False, event=None)

    def act(self, world: World, event: Event) -> World:
        decision = self.decide(world, event)
        judge_decision(event, decision)
        world = replace(world, convicted=world.convicted | convictions(world, event, self.settings))
        if isinstance(event, NodeLost):  # given up; a new cluster brings a new agent of the primary
            new_cluster = isinstance(decision, Relaunch) and decision.new_cluster
            kept = world.nodes if new_cluster else world.nodes - {event.host}
            world = replace(world, nodes=kept, dead=world.dead - {event.host})
        if isinstance(decision, End):
            world = self.remember(world, decision.status or world.status)
            leftovers = world.leftovers | ({world.program} if world.program else frozenset())
            return replace(world, phase="ended", program=None, leftovers=leftovers)
        world = self.remember(world, decision.status)
        if isinstance(event, NodeReturned):
            world = replace(world, nodes=world.nodes | {event.host})
        return replace(world, phase="stopping") if isinstance(decision, Relaunch) else world


def convictions(world: World, event: Event, settings: Settings) -> frozenset[tuple[str, int]]:
    """Return who may not be used from here on, by the words of the design rather than by the policy's."""
    if not settings.resilient:
        return frozenset()
    hosts = event.hosts if isinstance(event, NodesAccused) else set()  # a node that is lost may come back at any time
    in_use = (*world.roster.active, *world.roster.reserve)
    return frozenset((host, world.now_s) for host in hosts if host != HOSTS[0] and host in in_use)


def judge_decision(event: Event, decision: Decision) -> None:
    futile = isinstance(event, NodesAccused) and event.hosts == {HOSTS[0]} and isinstance(decision, Relaunch)
    if futile:
        raise WrongError("a relaunch for the primary, which stays")


def judge(world: World) -> None:
    """Check what must always hold."""
    if world.roster.primary != HOSTS[0]:
        raise WrongError("the primary was dropped")
    if world.fence > MAX_LAUNCH:
        raise WrongError("it does not end")
    living = {*world.leftovers, *([world.program] if world.program else [])}
    if sum(launch == world.fence for launch, _ in living) > 1:
        raise WrongError("two starts of the program can write")
    if world.program is None:
        return
    if any(number >= world.first_start for _, number in world.leftovers):
        raise WrongError("a launch runs beside what is left of the one before")
    just_started = world.program[1] == world.starts - 1 and not world.progressed and world.event is None
    if just_started and world.phase == "serving":
        for host, since_s in world.convicted:
            if host in world.roster.active and since_s > world.now_s - QUARANTINE_S:
                raise WrongError(f"{host} is used before its quarantine is over")


def faults(world: World, model: Model) -> Iterator[tuple[str, World]]:
    """Yield what may go wrong now."""
    if world.program and world.event is None and not world.progressed:
        # A program that never gets anywhere costs no fault: the policy alone must put an end to it.
        yield "program dies in vain", replace(world, event=FAILED)
        yield "commit", replace(world, progressed=True)
    if world.now_s < LAST_S:
        yield "time", replace(world, now_s=world.now_s + 1)
    if world.phase == "serving" and world.event is None:
        for exclusion in world.roster.excluded:
            yield f"{exclusion.host} answers again", replace(world, event=NodeReturned(exclusion.host))
        if world.status.waits_since_s is not None:
            yield "nobody answers", replace(world, event=NodesMissing())
    if world.faults == 0:
        return
    world = replace(world, faults=world.faults - 1)
    leftovers = world.leftovers | ({world.program} if world.program else frozenset())
    yield "controller killed", model.begin(replace(world, program=None, leftovers=leftovers))
    if world.phase == "ended":
        return
    for host in sorted(world.nodes - world.dead):
        yield f"{host} lost", replace(world, dead=world.dead | {host})
    if world.program and world.event is None:
        yield "program dies on n2", replace(world, event=STRUCK)
        for hosts in ({"n1"}, {"n2"}, {"n3"}, {"n1", "n2"}, set[str]()):
            yield f"{sorted(hosts)} accused", replace(world, event=NodesAccused(frozenset(hosts)))


def explore(model: Model, n_faults: int) -> int:
    """Visit every world that can come to be; return how many there are.

    Raises
    ------
    AssertionError
        With a shortest course of events to a world that must not be.
    """
    first = model.begin(World(JobStatus(Roster(HOSTS), 0.0), faults=n_faults))
    before: dict[World, tuple[str, World] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        try:
            judge(world)
            after = list(faults(world, model))
            if (next_step := model.step(world)) is not None:
                after.append((f"controller, {world.phase}", next_step))
        except WrongError as wrong:
            raise AssertionError(f"{wrong}: {' > '.join(course(before, world))}") from wrong
        for name, following in after:
            if following not in before:
                before[following] = (name, world)
                queue.append(following)
    return len(before)


def course(before: dict[World, tuple[str, World] | None], world: World) -> list[str]:
    names = []
    step = before[world]
    while step is not None:
        name, world = step
        names.append(name)
        step = before[world]
    return names[::-1]


PLAIN = Settings(nodes=2, quarantine_s=QUARANTINE_S)
RESILIENT = replace(PLAIN, resilient=True)
EXHAUSTING = replace(RESILIENT, exhaust_resources=True)
ALL_IN_USE = replace(EXHAUSTING, nodes=3)


@pytest.mark.parametrize("settings", [PLAIN, RESILIENT, EXHAUSTING, ALL_IN_USE])
def test_no_course_of_faults_breaks_what_must_always_hold(settings: Settings) -> None:
    assert explore(Model(settings), n_faults=2) > 100


class _ThatDropsThePrimary(Model):
    def decide(self, world: World, event: Event) -> Decision:
        decision = super().decide(world, event)
        if isinstance(event, NodesAccused) and HOSTS[0] in event.hosts and isinstance(decision, Relaunch):
            roster = world.roster.without(event.hosts, self.settings.nodes, world.now_s)
            return replace(decision, status=replace(decision.status, roster=roster)) if roster.active else decision
        return decision


class _ThatRelaunchesInVain(Model):
    def decide(self, world: World, event: Event) -> Decision:
        decision = super().decide(world, event)
        return Relaunch(world.status, "anyway") if isinstance(event, NodesAccused) else decision


class _ThatNeverEnds(Model):
    def decide(self, world: World, event: Event) -> Decision:
        return super().decide(replace(world, progressed=True), event)


class _ThatForgets(Model):
    def decide(self, world: World, event: Event) -> Decision:
        if not isinstance(event, NodeReturned):
            return super().decide(world, event)
        return Report(replace(world.status, roster=world.roster.readmitting(event.host)), "at once")


class _ThatActsBeforeItRemembers(Model):
    def remember(self, world: World, status: JobStatus) -> World:
        return replace(super().remember(world, status), remembered=world.remembered)


class _WithoutFence(Model):
    def fence(self, world: World) -> World:
        return world


class _WithoutSweep(Model):
    def sweep(self, world: World) -> World:
        return world


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (_ThatDropsThePrimary, "the primary was dropped"),
        (_ThatRelaunchesInVain, "a relaunch for the primary, which stays"),
        (_ThatNeverEnds, "it does not end"),
        (_ThatForgets, "is used before its quarantine is over"),
        (_ThatActsBeforeItRemembers, "is used before its quarantine is over"),
        (_WithoutFence, "two starts of the program can write"),
        (_WithoutSweep, "a launch runs beside what is left"),
    ],
)
def test_the_exploration_finds_what_a_broken_controller_does(broken: type[Model], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        explore(broken(EXHAUSTING), n_faults=2)
