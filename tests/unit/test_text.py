"""Times, counts and lists as people read them."""

from __future__ import annotations

import math

import pytest

from laggard.resilience.text import abbreviated, clock, counted, duration, printable, wrapped


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5.0, "0:00"),
        (0.0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (3599.0, "59:59"),
        (3600.0, "1:00:00"),
        (3725.0, "1:02:05"),
        (90061.0, "25:01:01"),
    ],
)
def test_a_time_since_the_beginning_has_hours_if_there_are_any(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (math.nan, "unknown"),
        (0.0, "0.0 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (-99.94, "-99.9 s"),
        (-130.0, "-2 min 10 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (-7260.0, "-2 h 1 min"),
        (3600.0 * 1234 + 59, "1,234 h 0 min"),
    ],
)
def test_a_length_of_time_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [counted(number, "node", "nodes") for number in (0, 1, 2, 12345)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
        "12,345 nodes",
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (list("abcdef"), "a, b, c, d, e, f"),
        (list("abcdefg"), "a, b, c, d, … (7 in all)"),
        (["x" * 28, "y" * 28], f"{'x' * 28}, {'y' * 28}"),
        (["x" * 29, "y" * 29], f"{'x' * 29}, {'y' * 29}"),  # 60 columns
        (["x" * 29, "y" * 30], f"{'x' * 29}, … (2 in all)"),
        (["x" * 29, "y" * 29, "z"], f"{'x' * 29}, {'y' * 29}, … (3 in all)"),
        (["x" * 70], "x" * 70),
    ],
)
def test_of_a_long_list_the_beginning_is_shown_and_all_are_counted(names: list[str], text: str) -> None:
    assert abbreviated(names) == text


@pytest.mark.parametrize(("width", "lines"), [(50, 1), (45, 1), (44, 2), (26, 2), (10, 2)])
def test_lines_are_as_wide_as_given_but_at_least_20_columns_and_go_on_indented(width: int, lines: int) -> None:
    found = wrapped("one two three four five six seven eight", width, indent=6)
    assert len(found.splitlines()) == lines
    assert all(line.startswith(" " * 6) for line in found.splitlines()[1:])
    assert all(len(line.strip()) <= max(20, width - 6) for line in found.splitlines())


def test_what_would_move_a_cursor_is_shown_as_a_space() -> None:
    assert printable("a\x1b[2Jb\r\nc\u200b") == "a [2Jb  c "
