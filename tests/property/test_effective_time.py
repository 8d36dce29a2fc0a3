"""Effective training time: its parts always sum to the job's time, and each is what its name says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.detectors.evidence import Slow, StillSlow
from laggard.detectors.verdict import Evidence, Severity, Verdict
from laggard.resilience.record.effective_time import SHOWN_FROM_S, EffectiveTime, TimeParts, effective_time
from laggard.resilience.record.timeline import Launch, RecordedVerdict, Timeline
from laggard.telemetry.course import Progress

T0 = 1_700_000_000.0
TIMES = st.floats(-100, 1000).map(lambda seconds: T0 + seconds) | st.just(math.nan)
POINTS = st.builds(Progress, st.floats(-100, 1000).map(T0.__add__), st.integers(0, 9), st.none() | st.floats(0, 50))


def job(
    *launches: Launch, ended_s: float = 1000, exit_code: int | None = 1, verdicts: tuple[RecordedVerdict, ...] = ()
) -> Timeline:
    return Timeline("train-a", "", "", T0, T0 + ended_s, exit_code, {}, launches, verdicts, ())


def launch(
    number: int, began_s: float, ended_s: float, *progress: tuple[float, int, float | None], wait_s: float = 0
) -> Launch:
    points = tuple(Progress(T0 + at_s, commits, step) for at_s, commits, step in progress)
    return Launch(number, ("node1", "node2"), (), T0 + began_s, T0 + ended_s, wait_s=wait_s, progress=points)


def said(time_s: float, host: str, gpu: str | None, slowdown: float, severity: Severity = "slow") -> RecordedVerdict:
    return RecordedVerdict(time_s, Verdict(host, gpu, slowdown, severity, Evidence(host, gpu, StillSlow(slowdown))))


@st.composite
def any_job(draw: st.DrawFn) -> Timeline:
    launches = []
    for number in range(draw(st.integers(0, 4))):
        points = sorted(draw(st.lists(POINTS, max_size=6)), key=lambda point: point.time_s)
        began_s, ended_s = draw(TIMES.filter(math.isfinite)), draw(TIMES)
        launches.append(
            Launch(number, ("node1",), (), began_s, ended_s, wait_s=draw(st.floats(-10, 100)), progress=tuple(points))
        )
    slowdown = draw(st.floats(0, 100) | st.just(math.nan))
    verdict = said(draw(TIMES.filter(math.isfinite)), "node1", "0", slowdown)
    ended_s = draw(st.floats(-10, 1000))
    return job(*launches, ended_s=ended_s, exit_code=draw(st.sampled_from([None, 0, 1])), verdicts=(verdict,))


@given(any_job(), st.none() | st.floats(0, 2000))
def test_the_parts_sum_to_the_jobs_time_and_none_is_negative(timeline: Timeline, now: float | None) -> None:
    found = effective_time(timeline, None if now is None else T0 + now)
    assert found.parts.total_s == pytest.approx(found.total_s, abs=1e-4)
    assert all(seconds >= -1e-6 for _, seconds in found.parts.by_name())
    assert len(found.launches) == len(timeline.launches)
    assert found.ratio is None or 0 <= found.ratio <= 1


@given(any_job())
def test_a_launch_without_progress_has_no_effective_time(timeline: Timeline) -> None:
    found = effective_time(timeline)
    for each, parts in zip(timeline.launches, found.launches, strict=True):
        if len(each.progress) == 0:
            assert (parts.effective_s, parts.repeated_s) == (0, 0)
            assert parts.slow_s == 0 or found.basis is None  # where it is unknown, waiting is known all the same


@given(any_job())
def test_what_became_progress_is_known_only_with_steps_or_commits(timeline: Timeline) -> None:
    found = effective_time(timeline)
    rises = any(
        after.commits > before.commits
        for each in timeline.launches
        for before, after in zip(each.progress, each.progress[1:], strict=False)
    )
    steps = any(point.step is not None for each in timeline.launches for point in each.progress)
    assert found.basis == ("steps" if steps else "commits" if rises else None)
    if found.basis is None:
        assert found.ratio is None
        assert found.parts.effective_s == 0


def parts(found: EffectiveTime) -> dict[str, float]:
    return {name: round(seconds, 6) for name, seconds in found.parts.by_name() if seconds}


def test_steps_lost_between_a_checkpoint_and_a_failure_count_as_lost_once() -> None:
    # Steps take 1 s. The checkpoint of step 300 is from 400 s; the failure is noticed at 510 s, 10 s after step 400.
    first = launch(0, 20, 510, (20, 0, None), (100, 0, 1), (500, 0, 401), wait_s=30)
    second = launch(1, 550, 900, (550, 0, None), (600, 0, 301), (899, 0, 600))
    found = effective_time(job(first, second, ended_s=910, exit_code=0))
    assert found.basis == "steps"
    assert parts(found) == {
        "effective_s": 300 + 300,
        "start_s": 20 + 80 + 50,
        "lost_s": 110,
        "relaunch_s": 10,
        "waiting_s": 30,
        "ending_s": 10,
    }
    assert found.ratio == pytest.approx(600 / 910)


def test_a_launch_that_goes_back_before_what_was_kept_repeats_it() -> None:
    first = launch(0, 0, 200, (0, 0, None), (100, 0, 0), (200, 0, 100))
    second = launch(1, 200, 300, (200, 0, None), (200, 0, 100), (300, 0, 200))
    third = launch(2, 300, 500, (300, 0, None), (300, 0, 50), (450, 0, 200))
    found = effective_time(job(first, second, third, ended_s=500, exit_code=0))
    # What the second did beyond step 100 is lost, since the third went on from 50; it repeats 50 to 100.
    assert [each.repeated_s for each in found.launches] == pytest.approx([0, 0, 50])
    assert [each.lost_s for each in found.launches] == pytest.approx([0, 100, 0])
    assert [each.effective_s for each in found.launches] == pytest.approx([100, 0, 150])


def test_commits_serve_where_no_steps_are_reported() -> None:
    first = launch(0, 10, 300, (10, 5, None), (60, 6, None), (260, 9, None))
    found = effective_time(job(first, ended_s=300))
    assert (found.basis, parts(found)) == ("commits", {"effective_s": 200, "start_s": 60, "lost_s": 40})


def test_after_the_last_commit_reported_steps_of_a_failed_job_are_lost() -> None:
    first = launch(0, 0, 300, (0, 0, None), (100, 0, 1), (200, 1, 2), (290, 1, 3))
    assert parts(effective_time(job(first, ended_s=300))) == {"effective_s": 100, "start_s": 100, "lost_s": 100}


def test_what_a_running_launch_has_not_kept_is_not_lost_yet() -> None:
    first = Launch(0, ("node1",), (), T0, progress=(Progress(T0, 0, None), Progress(T0 + 50, 1, None)))
    found = effective_time(job(first, ended_s=10, exit_code=None), now_s=T0 + 80)
    assert (found.total_s, parts(found)) == (80, {"start_s": 50, "unsaved_s": 30})


def test_a_slow_devices_share_of_the_progress_is_a_part_of_its_own() -> None:
    first = launch(0, 0, 1000, (0, 0, None), (100, 0, 1), (1000, 0, 901))
    verdict = said(T0 + 400, "node2", "0", 1.5)
    found = effective_time(job(first, exit_code=0, verdicts=(verdict,)))
    assert parts(found) == {"start_s": 100, "slow_s": 200, "effective_s": 700}


def test_a_device_was_slow_before_the_verdict_that_says_since_when() -> None:
    first = launch(0, 0, 1000, (0, 0, None), (100, 0, 1), (1000, 0, 901))
    evidence = Evidence("node2", "0", Slow(1.5, "peers", since_s=T0 + 400))
    verdict = RecordedVerdict(T0 + 900, Verdict("node2", "0", 1.5, "slow", evidence))
    found = effective_time(job(first, exit_code=0, verdicts=(verdict,)))
    assert parts(found) == {"start_s": 100, "slow_s": 200, "effective_s": 700}


def test_a_device_that_is_well_again_costs_nothing_any_more_and_the_slowest_counts() -> None:
    first = launch(0, 0, 1000, (0, 0, None), (100, 0, 1), (1000, 0, 901))
    course: list[tuple[float, str | None, float, Severity]] = [
        (400, "0", 1.5, "slow"),
        (460, "1", 2.0, "slow"),
        (520, "1", 1.0, "well again"),
        (580, None, 1.0, "well again"),
    ]
    verdicts = tuple(said(T0 + at_s, "node2", gpu, slowdown, severity) for at_s, gpu, slowdown, severity in course)
    found = effective_time(job(first, exit_code=0, verdicts=verdicts))
    assert parts(found) == {"start_s": 100, "slow_s": 20 + 30 + 20, "effective_s": 830}


def test_a_job_that_never_began_a_launch_was_starting() -> None:
    assert parts(effective_time(job(ended_s=7))) == {"start_s": 7}


def test_the_ratio_is_unknown_without_time_or_progress_and_rounding_never_makes_it_exceed_1() -> None:
    some = TimeParts(effective_s=10.0)
    assert EffectiveTime("steps", 20.0, some, ()).ratio == 0.5
    assert EffectiveTime("steps", 10.0 - 1e-9, some, ()).ratio == 1
    assert EffectiveTime("steps", 0.0, TimeParts(), ()).ratio is None
    assert EffectiveTime(None, 20.0, some, ()).ratio is None


def test_the_rest_of_the_time_is_shown_with_the_most_first_and_without_what_would_read_0() -> None:
    parts = TimeParts(1000.0, slow_s=3.0, start_s=SHOWN_FROM_S, repeated_s=0.049, lost_s=20.0)
    assert EffectiveTime("steps", 1023.1, parts, ()).rest == [("lost_s", 20.0), ("slow_s", 3.0), ("start_s", 0.05)]


@pytest.mark.parametrize(
    "verdict",
    [
        said(T0 + 400, "node9", "0", 1.5),  # of a node that it does not have
        said(T0 + 400, "node2", "0", math.nan),
        said(T0 + 50, "node2", "0", 1.5),  # of an earlier launch
        said(T0 + 400, "node2", "0", 0.5),  # faster than its peers
    ],
)
def test_a_verdict_that_is_not_of_a_launch_costs_it_nothing(verdict: RecordedVerdict) -> None:
    first, second = launch(0, 0, 90, (0, 0, None)), launch(1, 100, 1000, (100, 0, None), (100, 0, 1), (1000, 0, 901))
    found = effective_time(job(first, second, exit_code=0, verdicts=(verdict,)))
    assert found.launches[1].slow_s == 0


@pytest.mark.parametrize(("exit_code", "part"), [(0, "start_s"), (1, "lost_s"), (None, "lost_s")])
def test_a_launch_that_showed_no_step_was_starting_unless_it_failed(exit_code: int | None, part: str) -> None:
    first, second = launch(0, 0, 100, (0, 0, 1), (100, 0, 2)), launch(1, 100, 130, (100, 0, None))
    found = effective_time(job(first, second, ended_s=130, exit_code=exit_code))
    assert found.launches[1] == TimeParts(**{part: 30})


def test_a_launch_that_runs_and_has_shown_no_step_is_starting() -> None:
    first = launch(0, 0, 100, (0, 0, 1), (100, 0, 2))
    second = Launch(1, ("node1",), (), T0 + 100)
    assert effective_time(job(first, second, exit_code=None), now_s=T0 + 130).launches[1] == TimeParts(start_s=30)


def test_what_was_kept_lies_between_two_reports_of_steps() -> None:
    first = launch(0, 0, 200, (0, 0, None), (0, 0, 0), (200, 0, 200))
    second = launch(1, 200, 300, (200, 0, None), (200, 0, 100), (300, 0, 200))
    third = launch(2, 300, 500, (300, 0, None), (300, 0, 50), (500, 0, 250))
    found = effective_time(job(first, second, third, ended_s=500, exit_code=0))
    assert [(each.effective_s, each.repeated_s, each.lost_s) for each in found.launches] == [
        pytest.approx((100, 0, 100)),
        pytest.approx((0, 0, 100)),
        pytest.approx((150, 50, 0)),
    ]


def test_where_nobody_knows_what_became_progress_the_wait_for_a_slow_device_is_known() -> None:
    first = launch(0, 0, 100, (0, 0, None))
    found = effective_time(job(first, ended_s=100, verdicts=(said(T0 + 40, "node2", "0", 2.0),)))
    assert found.basis is None
    assert parts(found) == {"slow_s": 30, "unknown_s": 70}
    assert parts(effective_time(job(first, ended_s=100))) == {"unknown_s": 100}
