"""A job goes one checkpoint back only for the same failure alike, at most once without a new step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.checkpoints.complete import Checkpoint, Newest
from laggard.resilience.decision.events import Decision, JobStatus, ProgramFailed, Relaunch, Settings
from laggard.resilience.decision.failure import explain
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.row import Course

SAVE = (Newest("checkpoint", Checkpoint(0, 8, 1), Checkpoint(0, 4, 1)),)
SETTINGS = Settings(2, resilient=True, places_ranks=True, give_up_after_s=1e9, max_restarts_per_hour=1000)
THREE = Roster(("n1", "n2"), ("n3",))


@dataclass(frozen=True)
class Setback:
    """A failure soon after a checkpoint, of which there is always an older one: the worst case."""

    host: str
    words: str  # an error; or how a signal has ended it
    step: int | None
    passed: bool
    progressed: bool
    after_s: float

    @property
    def is_killed(self) -> bool:
        return self.words in ("SIGKILL", "SIGTERM")

    def is_alike(self, other: Setback) -> bool:
        if self.step is None or other.step is None:
            return self.words == other.words and self.step is other.step
        return self.words == other.words and abs(self.step - other.step) <= 2

    def event(self, now_s: float) -> ProgramFailed:
        code = {"SIGKILL": -9, "SIGTERM": -15, "SIGSEGV": -11}.get(self.words, 1)
        trace = ("Traceback (most recent call last):", '  File "train.py", line 36, in step', "    step()", self.words)
        end = ProcessEnd(self.host, 1, code, now_s, 5.0, trace if code > 0 else (), rank=0)
        course = Course(
            step=self.step, passed=self.passed, is_early=self.step is None, saves=SAVE, ever_progressed=True
        )
        return ProgramFailed(explain([end], {}), (), course)


words = st.sampled_from(
    ["SIGKILL", "SIGTERM", "SIGSEGV", "KeyError: labels", "RuntimeError: odd", "ConnectionResetError: by peer"]
)
setbacks = st.builds(
    Setback,
    host=st.sampled_from(["n1", "n2"]),
    words=words,
    step=st.none() | st.integers(0, 50),
    passed=st.booleans(),
    progressed=st.booleans(),
    after_s=st.floats(0.1, 4000.0),
)


def course_of(events: Iterable[Setback]) -> Iterator[tuple[Setback, Decision]]:
    """Yield what is decided about each, until the job ends."""
    status, now_s = JobStatus(THREE, 0.0), 0.0
    for each in events:
        now_s += each.after_s
        decision = decide(SETTINGS, status, each.event(now_s), now_s=now_s, progressed=each.progressed)
        yield each, decision
        if not isinstance(decision, Relaunch):
            return
        status = decision.status


def went_back(events: Iterable[Setback]) -> list[bool]:
    return [isinstance(decision, Relaunch) and bool(decision.goes_back) for _, decision in course_of(events)]


@given(st.lists(setbacks, max_size=12))
def test_no_job_goes_back_unless_two_failures_in_a_row_without_a_new_step_are_alike(events: Sequence[Setback]) -> None:
    for before, last, is_back in zip(events, events[1:], went_back(events)[1:], strict=False):
        assert not is_back or (last.is_alike(before) and not last.is_killed and not last.progressed)


@given(st.lists(setbacks.map(lambda each: replace(each, progressed=True)), max_size=12))
def test_no_job_that_makes_a_new_step_in_each_launch_goes_back(events: Sequence[Setback]) -> None:
    assert not any(went_back(events))


@given(st.lists(setbacks, max_size=20))
def test_no_row_goes_back_twice(events: Sequence[Setback]) -> None:
    has_gone = False
    for each, is_back in zip(events, went_back(events), strict=False):
        has_gone &= not each.progressed
        assert not (has_gone and is_back)
        has_gone |= is_back


@given(setbacks, st.sampled_from(["KeyError: labels", "RuntimeError: odd", "SIGSEGV"]), st.sampled_from([1.0, 2000.0]))
def test_a_failure_that_stays_the_same_goes_back_at_the_second_or_third_time(
    each: Setback, words: str, after_s: float
) -> None:
    backs = went_back([replace(each, words=words, progressed=False, after_s=after_s)] * 3)
    assert [number for number, is_back in enumerate(backs) if is_back] == [1 if each.passed else 2]
