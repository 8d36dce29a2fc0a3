"""How many of the batches that a loop has drawn its steps have used."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.torch.batch_count import BatchCount, Pattern

START = BatchCount(0)


def after(draws: Sequence[int], start: BatchCount = START) -> BatchCount:
    """Return the count after one save for each number of drawn batches."""
    count, drawn = start, start.drawn
    for step, n in enumerate(draws, start.step + 1):
        drawn += n
        count = count.after(step, drawn)
    return count


@pytest.mark.parametrize(
    ("loop", "draws", "used", "pattern"),
    [
        ("takes a batch before each step", [1, 1, 1], 3, Pattern(1, 0)),
        ("takes the next batch during the step", [2, 1, 1], 3, Pattern(1, 1)),
        ("fills two buffers first", [3, 1, 1], 3, Pattern(1, 2)),
        ("accumulates over four batches", [4, 4, 4], 12, Pattern(4, 0)),
        ("does both", [5, 4, 4], 12, Pattern(4, 1)),
        ("reaches the end of its data", [2, 1, 1, 0], 4, Pattern(1, 1)),
        ("reaches the end of its data, with two buffers", [3, 1, 1, 0, 0], 5, Pattern(1, 2)),
        ("reaches the end of its data, accumulating", [5, 4, 4, 3], 16, Pattern(4, 1)),
        ("begins its prefetcher anew", [2, 1, 0, 2, 1], 5, Pattern(1, 1)),
        ("takes no batches from us", [0, 0], 0, Pattern(0, 0)),
    ],
)
def test_a_step_uses_as_many_batches_as_are_drawn_between_two_saves(
    loop: str, draws: list[int], used: int, pattern: Pattern
) -> None:
    count = after(draws)
    assert (count.used, count.pattern, count.undecided) == (used, pattern, None), loop


@pytest.mark.parametrize("draws", [[2], [5]])
def test_after_one_save_it_is_not_known_whether_several_batches_were_used_or_drawn_ahead(draws: list[int]) -> None:
    assert after(draws).undecided == (1, draws[0])


@pytest.mark.parametrize(
    ("what", "draws", "why"),
    [
        ("a batch is left out", [1, 1, 2], r"step 3 .*: 2 batches were drawn for 1 steps, .* used 1 and left 0 drawn"),
        ("a batch is used twice", [1, 1, 0], "step 3 .*: 0 batches were drawn for 1 steps"),
        ("a batch is used twice by a loop that draws ahead", [2, 1, 0, 1], "step 4 .*: 1 batches were drawn"),
        ("the last step of an epoch is smaller", [4, 4, 2], "step 3 .*: 2 batches were drawn"),
        ("the second step is larger", [2, 4], "2 batches were drawn by step 1, and 4 more by step 2"),
        ("everything is drawn at the beginning", [2, 0], "2 batches were drawn by step 1, and 0 more by step 2"),
    ],
)
def test_a_loop_that_draws_otherwise_is_refused_with_the_way_out(what: str, draws: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*; pass save\\(step, batches=N\\), where N") as refused:
        after(draws)
    assert "which batch step" in str(refused.value), what


def test_steps_between_two_saves_count_too() -> None:
    assert BatchCount(0).after(10, 10).used == 10
    assert BatchCount(0).after(10, 11).after(20, 21).used == 20
    assert BatchCount(0).after(10, 20).after(15, 30).used == 30
    with pytest.raises(ValueError, match="3 batches were drawn for 10 steps"):
        BatchCount(0).after(10, 3)
    with pytest.raises(ValueError, match="1 batches were drawn for -4 steps"):
        BatchCount(5).after(1, 1)


def test_the_same_step_can_be_saved_again() -> None:
    for draws in ([1], [1, 1], [2]):
        count = after(draws)
        assert count.after(len(draws), sum(draws)) == count


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=10))
def test_what_the_program_says_is_taken_for_what_it_is(steps: list[tuple[int, int]]) -> None:
    count, drawn, used = BatchCount(0), 0, 0
    for step, (n_used, ahead) in enumerate(steps, 1):
        used += n_used
        drawn = max(drawn, used + ahead)
        count = count.after(step, drawn, n_used)
        assert count.used == used
    with pytest.raises(ValueError, match=f"{drawn - used + 1} cannot have been used, for {drawn - used} are drawn"):
        count.after(len(steps) + 1, drawn, drawn - used + 1)
    with pytest.raises(ValueError, match="cannot have been used"):
        count.after(len(steps) + 1, drawn, -1)


def test_a_program_that_begins_to_say_it_later_is_told_to_say_it_from_the_first_save_on() -> None:
    with pytest.raises(ValueError, match="1 are used, but how many until step 1 was not said"):
        after([2]).after(2, 3, 1)
    assert after([1, 1]).after(3, 4, 2).used == 4


@pytest.mark.parametrize(
    ("draws", "used"), [([2, 1], 2), ([2, 0], 2), ([1], 1), ([1, 1], 2), ([4, 4], 8), ([6], None), ([5], None)]
)
def test_a_launch_knows_from_the_one_before_how_its_loop_draws_unless_it_draws_otherwise(
    draws: list[int], used: int | None
) -> None:
    earlier = Pattern(4, 0) if draws[0] > 2 else Pattern(1, 1)
    count = after(draws, BatchCount(7, earlier=earlier))
    assert (None if count.undecided else count.used) == used


@given(
    per_step=st.integers(1, 4),
    ahead=st.integers(0, 4),
    saves=st.lists(st.integers(1, 5), min_size=2, max_size=8),
    begin=st.integers(0, 3),
)
def test_a_loop_that_draws_as_many_at_each_step_is_always_counted_right(
    per_step: int, ahead: int, saves: list[int], begin: int
) -> None:
    count, step = BatchCount(begin), begin
    for n, n_steps in enumerate(saves):
        step += n_steps
        used = per_step * (step - begin)
        count = count.after(step, used + ahead)
        assert count.undecided or count.used == used
        assert n == 0 or not count.undecided


@given(st.lists(st.integers(1, 3), min_size=2, max_size=8))
def test_a_loop_whose_steps_use_different_numbers_is_refused(uses: list[int]) -> None:
    count, used, wrong = BatchCount(0), 0, False
    for step, n_used in enumerate(uses, 1):
        used += n_used
        try:
            count = count.after(step, used)
        except ValueError:
            break
        wrong |= not count.undecided and count.used != used
    # Only a loop whose first step draws more than all later ones cannot be told from one that draws ahead, and is none
    # if it does so in each launch: what it draws first comes again.
    assert not wrong or uses[0] > uses[1]
