"""A row of failures: how far a launch came, and whether it speaks for the program or for the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from laggard.kvstore.checkpoints.complete import Checkpoint, Newest
from laggard.resilience.decision.row import (
    Course,
    EarlierLaunches,
    LaunchSpan,
    Setback,
    is_the_programs,
    is_the_saves,
    was_passed,
)
from laggard.resilience.reading.signatures import Kind


def setback(
    host: str = "n2", at_s: float = 0.0, kind: Kind = "program", place: str = "here", ran_s: float = 60.0
) -> Setback:
    return Setback(at_s, host, place, ran_s, kind, Course())


MOVED = [setback("n1"), setback("n2"), setback("n1")]


@pytest.mark.parametrize(
    ("row", "can_move", "expected"),
    [
        (MOVED, True, True),
        (MOVED[:2], True, False),
        ([setback(""), setback(""), setback("")], True, True),  # on several nodes at once
        ([setback(), setback(), setback()], True, False),
        ([setback(), setback(), setback()], False, True),
        ([setback(kind="hardware")] * 3, False, False),
        ([*MOVED[:2], setback("n1", place="there")], True, False),
        ([*MOVED[:2], setback("n1", ran_s=70.0)], True, True),
        ([*MOVED[:2], setback("n1", ran_s=71.0)], True, False),
        ([replace(each, kind="network") for each in MOVED], True, False),
        ([replace(each, kind="transient") for each in MOVED], True, False),
    ],
)
def test_the_same_place_on_another_node_speaks_for_the_program(
    row: list[Setback], *, can_move: bool, expected: bool
) -> None:
    assert is_the_programs(row, can_move=can_move, went_back=False) == expected


def test_words_of_the_program_wait_for_a_minute_where_a_start_has_come_through_before() -> None:
    late = Course(is_early=True, ever_progressed=True)

    def row(course: Course, apart_s: float) -> list[Setback]:
        return [replace(each, course=course, time_s=number * apart_s) for number, each in enumerate(MOVED)]

    assert is_the_programs(row(Course(is_early=True), 0.0), can_move=True, went_back=False)
    assert [is_the_programs(row(late, apart_s), can_move=True, went_back=False) for apart_s in (29.9, 30.0)] == [
        False,
        True,
    ]


def test_of_a_program_that_reports_steps_the_age_says_nothing_of_the_place() -> None:
    steps = Course(step=7)
    row = [replace(each, course=steps, ran_s=ran_s) for each, ran_s in zip(MOVED, (60, 3600, 60), strict=True)]
    assert is_the_programs(row, can_move=True, went_back=False)
    assert not is_the_programs(
        [replace(each, course=Course(passed=True)) for each in row], can_move=True, went_back=False
    )


SAVE = (Newest("checkpoint", Checkpoint(0, 8, 1), Checkpoint(0, 4, 1)),)
SOON, PASSED = Course(saves=SAVE), Course(saves=SAVE, passed=True)


@pytest.mark.parametrize(
    ("steps", "expected"), [((7, 9, 7), False), ((7, 7), False), ((7, 7, 7), True), ((None,) * 3, False)]
)
def test_an_error_that_the_job_once_got_past_is_the_programs_if_it_stays_at_one_step(
    steps: Sequence[float | None], *, expected: bool
) -> None:
    row = [replace(setback(f"n{number}"), course=Course(step=step)) for number, step in enumerate(steps)]
    assert is_the_programs(row, can_move=True, went_back=False, survived={row[0].place}) == expected
    assert is_the_programs(row, can_move=True, went_back=False, survived={"another"}) == (len(row) > 2)


def of_courses(*courses: Course, kind: Kind = "program") -> list[Setback]:
    return [replace(setback(kind=kind), course=course) for course in courses]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (of_courses(PASSED), False),
        (of_courses(SOON, PASSED), True),
        (of_courses(SOON, SOON), False),
        (of_courses(Course(), SOON, SOON), True),
        (of_courses(SOON, Course(), SOON), False),
        (of_courses(SOON, Course(passed=True)), False),
        (of_courses(Course(), PASSED), False),
        (of_courses(SOON, SOON, SOON, kind="unknown"), True),
        *(
            (of_courses(SOON, SOON, SOON, kind=kind), False)
            for kind in ("network", "transient", "hardware", "capacity")
        ),
        ([*of_courses(SOON, SOON), replace(setback(place="there"), course=SOON)], False),
        (of_courses(SOON, SOON, replace(SOON, step=9)), False),
        (of_courses(SOON, replace(SOON, step=9), replace(SOON, step=11)), True),
        (of_courses(SOON, replace(SOON, step=9), replace(SOON, step=12)), False),
    ],
)
def test_what_fails_alike_soon_after_a_checkpoint_speaks_for_it(row: list[Setback], *, expected: bool) -> None:
    assert is_the_saves(row) == expected


def span(ran_s: float = 60.0, commits: int = 0, step: float | None = None, *, resumed: bool = False) -> LaunchSpan:
    return LaunchSpan(ran_s, commits, step, resumed)


def failed_after(ran_s: float, earlier: EarlierLaunches, *, resumed: bool = False) -> Setback:
    return replace(setback(ran_s=ran_s), course=earlier.course(span(ran_s, resumed=resumed)))


def test_a_step_beyond_all_others_is_progress() -> None:
    earlier = EarlierLaunches()
    assert earlier.made_progress(span(step=0))
    earlier.add(span(step=7))
    earlier.add(span(step=3))
    assert earlier.best_step == 7
    assert [earlier.made_progress(span(step=step, commits=9, ran_s=9999)) for step in (7, 8)] == [False, True]


def test_commits_are_progress_unless_each_start_makes_them() -> None:
    earlier = EarlierLaunches()
    assert earlier.made_progress(span(commits=1))
    earlier.add(span(60.0, 3))
    assert not earlier.made_progress(span(70.0, 3))
    assert earlier.made_progress(span(71.0, 3))
    assert earlier.made_progress(span(60.0, 4))


def test_a_program_that_gives_no_sign_has_made_progress_after_an_hour() -> None:
    assert [EarlierLaunches().made_progress(span(ran_s)) for ran_s in (3599.0, 3600.0)] == [False, True]


def test_a_place_was_passed_if_a_launch_that_began_alike_came_clearly_further() -> None:
    earlier = EarlierLaunches()
    earlier.add(span(100.0))
    assert [was_passed([failed_after(ran_s, earlier)]) for ran_s in (81.0, 82.0)] == [True, False]
    assert not was_passed([failed_after(1.0, earlier, resumed=True)])
    earlier.add(span(step=1000))
    assert [earlier.course(span(step=step)).passed for step in (990, 991)] == [True, False]
    assert [earlier.course(span(step=step)).passed for step in (-1000, 1000, 1001)] == [True, False, False]


def test_a_launch_that_failed_at_a_place_has_not_passed_it_however_long_it_took_to_start() -> None:
    earlier = EarlierLaunches()
    first = failed_after(60.0, earlier)  # which imported what the later ones find in memory
    earlier.add(span(60.0))
    second = failed_after(0.1, earlier)
    assert not was_passed([first, second])
    assert was_passed([replace(first, place="elsewhere"), second])
    assert was_passed([second])  # that launch was ended for another reason
    earlier.add(span(300.0))
    assert was_passed([first, failed_after(0.1, earlier)])


def test_what_fails_before_a_sign_or_within_minutes_may_be_the_checkpoints() -> None:
    assert [span(ran_s, step=7, resumed=True).is_soon for ran_s in (180.0, 181.0)] == [True, False]
    assert not span(1.0).is_soon
    assert span(3600.0, resumed=True).is_soon
    assert not span(3600.0, commits=1, resumed=True).is_soon


def test_a_course_says_what_is_known_of_a_launch() -> None:
    earlier = EarlierLaunches()
    assert earlier.course(span(1.0)) == Course(is_early=True)
    assert earlier.course(span(1.0, commits=1)) == Course(ever_progressed=True)
    assert earlier.course(span(1.0, step=1)) == Course(step=1, ever_progressed=True)
    assert earlier.course(span(1.0, resumed=True)) == Course(is_early=True, ever_progressed=True)
    earlier.add(span(1.0, step=1))
    assert earlier.course(span(1.0)).ever_progressed
