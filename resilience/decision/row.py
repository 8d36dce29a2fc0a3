"""A row: failures and hangs since the last progress. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from laggard.kvstore.checkpoints.complete import Newest
from laggard.resilience.reading.signatures import Kind

# A program that gives no sign of its own has made progress if it ran for so long.
LONG_LAUNCH_S = 3600.0
# Steps are reported now and then: a step was passed if another launch came further by more than this.
MIN_STEPS_PAST, STEPS_PAST_PART = 2.0, 0.01
# Two launches came equally far if their ages differ by no more than this part, or so many seconds.
SAME_AGE_PART, SAME_AGE_S = 0.1, 10.0
# What fails within this time of going on from a checkpoint may fail because of it.
SOON_S = 180.0


@dataclass(frozen=True, slots=True)
class Course:
    """How far a launch had come."""

    is_early: bool = False  # whether it had given no sign of its own: no step, no commit
    step: float | None = None  # the newest that it had reported
    passed: bool = False  # whether an earlier launch had come past that step
    longest_s: float = 0.0  # without steps: how long an earlier launch ran at most that had begun in the same way
    # The newest checkpoints, if it had gone on from them a few minutes before at most, and there are older ones
    saves: tuple[Newest, ...] = ()
    ever_progressed: bool = False  # whether the job, or an earlier one with its State, ever made progress


UNKNOWN_COURSE = Course()


@dataclass(frozen=True, slots=True)
class Setback:
    """A failure or a hang in a row."""

    time_s: float  # Unix time
    host: str  # where it began; empty if that is not known, or on several nodes at once
    place: str  # type and place of the error
    ran_s: float  # how long the launch had run
    kind: Kind
    course: Course

    def is_same_as(self, other: Setback) -> bool:
        """Return whether both happened at the same place of the program."""
        came_as_far = self.course.step is not None or _is_same_age(self.ran_s, other.ran_s)
        return self.place == other.place and came_as_far

    def came_as_far_as(self, other: Setback) -> bool:
        """Return whether both happened at about the same step, or before their launches had given a sign."""
        step, before = self.course.step, other.course.step
        if step is None or before is None:
            return step is before and self.course.is_early == other.course.is_early
        return abs(step - before) <= _about(step)


def was_passed(row: Sequence[Setback]) -> bool:
    """Return whether a launch came past the place of a row's last failure.

    Without steps that is one which ran longer, unless it failed at this very place: then only its start took longer, as
    on nodes that have nothing in memory yet.
    """
    last = row[-1]
    longest_s = last.course.longest_s
    if longest_s <= (1 + SAME_AGE_PART) * last.ran_s + SAME_AGE_S:
        return last.course.passed
    return not any(each.place == last.place and _is_same_age(each.ran_s, longest_s) for each in row[:-1])


def is_the_saves(row: Sequence[Setback]) -> bool:
    """Return whether the last two failures of a row speak for the checkpoint that their launches went on from.

    They came soon after it, alike, at a place that was passed before; from the third failure on, wherever.
    """
    if len(row) < 2 or not (len(row) > 2 or was_passed(row)):
        return False
    before, last = row[-2:]
    can_be = all(each.course.saves and each.kind in ("program", "unknown") for each in (before, last))
    return can_be and last.place == before.place and last.came_as_far_as(before)


# A failure before the first step is only the program's if the row has waited for so long: what its start needs may be
# away. In a job that has made steps before, that is likelier than a program that fails, whatever its words are.
SETTLED_S, SETTLED_AFTER_STEPS_S = 60.0, 1200.0


def is_the_programs(row: Sequence[Setback], *, can_move: bool, went_back: bool, survived: Collection[str] = ()) -> bool:
    """Return whether the last failures of a row speak for the program: the same place, which nobody ever passed.

    That somebody has passed it says nothing once it is the same from an older checkpoint. What the job got past before
    comes by chance, and then fails at one step three times for another reason.

    Parameters
    ----------
    row
        The failures since the last progress, newest last.
    can_move
        Whether what failed may run on another node in the next launch.
    went_back
        Whether the row has gone back to an older checkpoint.
    survived
        The places of earlier failures after which the job made progress.
    """
    if len(row) < 3:
        return False
    before, last = row[-2:]
    steps = {each.course.step for each in row[-3:]}
    if last.place in survived and (len(steps) > 1 or None in steps):
        return False
    moved = not last.host or last.host != before.host
    passed = was_passed(row) and not went_back
    if not last.is_same_as(before) or passed or (can_move and not moved):
        return False
    if last.kind in ("network", "transient") or (last.kind == "hardware" and not moved):
        return False
    if not last.course.is_early:
        return True
    settled_s = SETTLED_AFTER_STEPS_S if last.course.ever_progressed else SETTLED_S
    if last.kind in ("program", "capacity"):
        settled_s = SETTLED_S if last.course.ever_progressed else 0.0
    return last.time_s - row[0].time_s >= settled_s


@dataclass(frozen=True, slots=True)
class LaunchSpan:
    """How long a launch has run, and the signs that it has given."""

    ran_s: float
    commits: int  # to State
    step: float | None  # the newest that it has reported
    resumed: bool  # whether there was a commit when it began

    @property
    def is_early(self) -> bool:
        """Whether it has given no sign yet."""
        return self.step is None and not self.commits

    @property
    def is_soon(self) -> bool:
        """Whether it has gone on from what was there a few minutes ago, or is still loading it."""
        return self.resumed and (self.is_early or self.ran_s <= SOON_S)


class EarlierLaunches:
    """How far the launches of a job came that are over."""

    def __init__(self) -> None:
        self.best_step: float | None = None  # of all
        self._last: LaunchSpan | None = None
        self._longest_s: dict[bool, float] = {}  # of those from scratch, and of those that resumed
        self._ever_progressed = False

    def made_progress(self, span: LaunchSpan) -> bool:
        """Return whether a launch came further than all before it."""
        if span.step is not None:
            return self.best_step is None or span.step > self.best_step
        if not span.commits:
            # A program may write checkpoints of its own that we know nothing of.
            return span.ran_s >= LONG_LAUNCH_S
        return self._last is None or not _writes_anew(self._last, span)

    def course(self, span: LaunchSpan) -> Course:
        """Return how far a launch has come that is not over yet."""
        passed, longest_s = False, 0.0
        if span.step is not None and self.best_step is not None:
            passed = self.best_step > span.step + _about(span.step)
        else:
            longest_s = self._longest_s.get(span.resumed, 0.0)
        ever = self._ever_progressed or self.made_progress(span) or span.resumed
        return Course(span.is_early, span.step, passed, longest_s, ever_progressed=ever)

    def add(self, span: LaunchSpan) -> None:
        """Take in a launch that is over."""
        self._ever_progressed |= self.made_progress(span)
        self._last = span
        self._longest_s[span.resumed] = max(self._longest_s.get(span.resumed, 0.0), span.ran_s)
        if span.step is not None:
            self.best_step = span.step if self.best_step is None else max(self.best_step, span.step)


def _is_same_age(ran_s: float, other_s: float) -> bool:
    return abs(ran_s - other_s) <= max(SAME_AGE_S, SAME_AGE_PART * max(ran_s, other_s))


def _about(step: float) -> float:
    return max(MIN_STEPS_PAST, STEPS_PAST_PART * abs(step))


def _writes_anew(before: LaunchSpan, span: LaunchSpan) -> bool:
    """Return whether a launch committed only what each one commits as it starts."""
    return span.commits == before.commits and _is_same_age(span.ran_s, before.ran_s)
