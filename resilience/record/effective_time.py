"""Effective training time: how much of a job's time became lasting progress, and where the rest went. Pure.

Each second of a job belongs to one part. A launch begins, comes to its first step (start), repeats what an earlier
launch had done (repeated), goes beyond it (effective, but for what it waited for a slow device), and may go on past the
last step that is kept (lost; of a launch that still runs: not kept yet). Between two launches lie the relaunch and the
back-off. Effective training time over total time is the effective training time ratio (ETTR); most authors count the
time at the pace of a slow device as effective, and here it is a part of its own.

Progress is measured by the steps that the program reports (``Job.progress``): what was kept shows by the step from
which the next launch goes on, or, if there was none, by the last commit to State. Without steps, commits to State are
taken for steps. Without either, nobody knows what became progress, and the ratio is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

from laggard.resilience.record.timeline import Launch, Timeline

Basis = Literal["steps", "commits"]
"""What progress is measured by."""

SHOWN_FROM_S = 0.05
"""A shorter part is not shown: it would read 0.0 s."""


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Seconds by what they were spent on. The parts of a job sum to its time."""

    effective_s: float = 0.0  # became progress that was kept
    # Became such progress too, but only waited for a slow device; also in launches of which that is unknown
    slow_s: float = 0.0
    start_s: float = 0.0  # until the program was started, and from then to its first step
    repeated_s: float = 0.0  # repeated steps that an earlier launch had taken
    lost_s: float = 0.0  # work that was not kept, and the time until a failure was noticed
    relaunch_s: float = 0.0  # from the decision to relaunch to the next launch, but for the back-off
    waiting_s: float = 0.0  # back-off after failures, and waits for what did not answer
    unsaved_s: float = 0.0  # since the newest progress of a launch that is running: not kept yet
    ending_s: float = 0.0  # from the end of the last launch to the end of the job
    unknown_s: float = 0.0  # launches of a program of which nobody knows what became progress

    def __add__(self, other: TimeParts) -> TimeParts:
        return TimeParts(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def by_name(self) -> list[tuple[str, float]]:
        """Return the seconds of each part."""
        return [(part.name, getattr(self, part.name)) for part in fields(self)]

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        return math.fsum(seconds for _, seconds in self.by_name())


@dataclass(frozen=True, slots=True)
class EffectiveTime:
    """Where a job's time went."""

    basis: Basis | None  # what progress is measured by; None if nobody knows what became progress
    total_s: float  # the job's time, in seconds
    parts: TimeParts  # the parts of the whole job
    launches: tuple[TimeParts, ...]  # the parts of each launch, and of the gap before it

    @property
    def ratio(self) -> float | None:
        """Effective training time over total time; None if unknown."""
        if self.basis is None or self.total_s <= 0:
            return None
        return min(1.0, self.parts.effective_s / self.total_s)

    @property
    def rest(self) -> list[tuple[str, float]]:
        """Where the rest of the time went, by the names of the parts, and for how many seconds; the most first."""
        shown = [each for each in self.parts.by_name() if each[0] != "effective_s" and each[1] >= SHOWN_FROM_S]
        return sorted(shown, key=lambda part: -part[1])


def effective_time(timeline: Timeline, now_s: float | None = None) -> EffectiveTime:
    """Return where a job's time went."""
    end_s = max(timeline.began_s, timeline.ended_s if now_s is None else now_s)
    basis, best = _basis(timeline), -math.inf
    until_s = timeline.began_s  # all time before it has its part
    launches: list[TimeParts] = []
    for index, launch in enumerate(timeline.launches):
        began_s = _between(launch.began_s, until_s, end_s)
        ended_s = _between(end_s if math.isnan(launch.ended_s) else launch.ended_s, began_s, end_s)
        gap = _gap(began_s - until_s, timeline.launches[index - 1] if index else None)
        until_s = ended_s
        if basis is None:
            slow = _between(_slow_s(timeline, launch, began_s, ended_s), 0.0, ended_s - began_s)
            launches.append(gap + TimeParts(slow_s=slow, unknown_s=ended_s - began_s - slow))
            continue
        end = _end(timeline, index, running=now_s is not None)
        course = _Course(_positions(launch, basis), began_s, ended_s)
        if not course.points:
            launches.append(gap + _without_progress(ended_s - began_s, end))
            continue
        beyond_s, kept_s = _kept(timeline, index, course, best, basis, end)
        best = max(best, course.position_at(kept_s)) if basis == "steps" else best
        slow = _between(_slow_s(timeline, launch, beyond_s, kept_s), 0.0, kept_s - beyond_s)
        inside = TimeParts(
            effective_s=kept_s - beyond_s - slow,
            slow_s=slow,
            start_s=course.first_s - began_s,
            repeated_s=beyond_s - course.first_s,
        )
        launches.append(gap + inside + _tail(ended_s - kept_s, end))
    rest = _rest(end_s - until_s, any_launch=bool(launches), running=now_s is not None)
    return EffectiveTime(basis, end_s - timeline.began_s, sum(launches, rest), tuple(launches))


_End = Literal["done", "failed", "running"]


class _Course:
    """How far a launch had come at which Unix time; neither ever falls. Between two points it went on evenly."""

    def __init__(self, positions: Sequence[tuple[float, float]], began_s: float, ended_s: float) -> None:
        self.ended_s = ended_s
        self.points: list[tuple[float, float]] = []
        for time_s, position in positions:
            highest = self.points[-1][1] if self.points else -math.inf
            self.points.append((_between(time_s, began_s, ended_s), max(position, highest)))

    @property
    def first_s(self) -> float:
        """When it showed its first sign of life."""
        return self.points[0][0]

    @property
    def last_s(self) -> float:
        """When it was first as far as it ever came."""
        return self.reached_s(self.points[-1][1])

    def reached_s(self, position: float) -> float:
        """Return when it was that far: at the earliest its first sign of life, infinity if it never was."""
        if position <= self.points[0][1]:
            return self.first_s
        for (before_s, before), (after_s, after) in pairwise(self.points):
            if before < position <= after:
                return before_s + (after_s - before_s) * (position - before) / (after - before)
        return math.inf

    def position_at(self, time_s: float) -> float:
        """Return how far it had come at a time, not before its first sign of life."""
        for (before_s, before), (after_s, after) in pairwise(self.points):
            if before_s <= time_s < after_s:
                return before + (after - before) * (time_s - before_s) / (after_s - before_s)
        return self.points[-1][1] if time_s >= self.first_s else self.points[0][1]


def _basis(timeline: Timeline) -> Basis | None:
    if any(point.step is not None for launch in timeline.launches for point in launch.progress):
        return "steps"
    return "commits" if any(map(_commit_times, timeline.launches)) else None


def _positions(launch: Launch, basis: Basis) -> list[tuple[float, float]]:
    if basis == "commits":
        return [(time_s, float(number)) for number, time_s in enumerate(_commit_times(launch))]
    return [(point.time_s, point.step) for point in launch.progress if point.step is not None]


def _commit_times(launch: Launch) -> list[float]:
    """Return when the launch was seen to have committed; its first point is its start."""
    return [after.time_s for before, after in pairwise(launch.progress) if after.commits > before.commits]


def _end(timeline: Timeline, index: int, *, running: bool) -> _End:
    if index + 1 < len(timeline.launches):
        return "failed"
    if timeline.exit_code == 0:
        return "done"
    return "running" if running and math.isnan(timeline.launches[index].ended_s) else "failed"


def _kept(timeline: Timeline, index: int, course: _Course, best: float, basis: Basis, end: _End) -> tuple[float, float]:
    """Return from when on a launch was further than those before it, and until when its work was kept."""
    beyond_s = course.reached_s(best)
    if end == "done":
        return min(beyond_s, course.ended_s), course.ended_s
    if math.isinf(beyond_s):
        return course.last_s, course.last_s
    kept_s = course.last_s
    if basis == "steps":
        later = timeline.launches[index + 1 :]
        went_on_at = [point.step for each in later for point in each.progress if point.step is not None]
        if went_on_at:
            kept_s = course.reached_s(went_on_at[0])
        elif any(map(_commit_times, timeline.launches)):
            kept_s = max(_commit_times(timeline.launches[index]), default=-math.inf)
    return beyond_s, _between(kept_s, beyond_s, course.last_s)


def _slow_s(timeline: Timeline, launch: Launch, since_s: float, until_s: float) -> float:
    """Estimate from the verdicts for how long a launch waited for its slowest device."""
    waited_s, slowdown, at_s = 0.0, 1.0, since_s
    slowdowns: dict[tuple[str, str | None], float] = {}
    accusing = (each for each in timeline.verdicts if each.of.host in launch.nodes)
    for verdict in sorted(accusing, key=lambda each: each.since_s):
        if timeline.launch_at(verdict.time_s) is launch and not math.isnan(verdict.of.slowdown):
            next_s = _between(verdict.since_s, at_s, max(at_s, until_s))
            waited_s += (1 - 1 / slowdown) * (next_s - at_s)
            slowdowns[verdict.of.host, verdict.of.gpu] = verdict.of.slowdown
            if verdict.is_over:
                slowdowns = {slow: each for slow, each in slowdowns.items() if not verdict.is_about(*slow)}
            slowdown, at_s = max([1.0, *slowdowns.values()]), next_s
    return waited_s + (1 - 1 / slowdown) * (until_s - at_s)


def _gap(gap_s: float, before: Launch | None) -> TimeParts:
    if before is None:
        return TimeParts(start_s=gap_s)
    waiting_s = _between(before.wait_s, 0.0, gap_s)
    return TimeParts(relaunch_s=gap_s - waiting_s, waiting_s=waiting_s)


def _without_progress(ran_s: float, end: _End) -> TimeParts:
    return TimeParts(lost_s=ran_s) if end == "failed" else TimeParts(start_s=ran_s)


def _tail(tail_s: float, end: _End) -> TimeParts:
    return TimeParts(unsaved_s=tail_s) if end == "running" else TimeParts(lost_s=tail_s)


def _rest(rest_s: float, *, any_launch: bool, running: bool) -> TimeParts:
    if not any_launch:
        return TimeParts(start_s=rest_s)
    return TimeParts(relaunch_s=rest_s) if running else TimeParts(ending_s=rest_s)


def _between(value: float, low: float, high: float) -> float:
    """Return the value, or the nearer end of the range if it lies outside."""
    return min(max(value, low), high)
