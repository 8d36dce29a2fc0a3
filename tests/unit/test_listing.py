"""Which columns of a table fit, bars, and curves of a few characters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.views.listing import LEAST_BAR, Cell, Column, bar, curve, fitted


def column(heading: str, rank: int, *texts: str, shares: Sequence[float | None] = ()) -> Column:
    return Column(heading, [Cell(text) for text in texts], rank, shares=shares)


TABLE = [column("name", 0, "a"), column("load", 1, "5", shares=[0.5]), column("more", 2, "1"), column("most", 5, "2")]


@pytest.mark.parametrize(
    ("width", "most_bar", "headings"),
    [
        (80, 0, ["name", "load", "more", "most"]),
        (20, 0, ["name", "load", "more", "most"]),
        (19, 0, ["name", "load", "more"]),
        (14, 0, ["name", "load"]),
        (9, 0, ["name"]),
        (1, 0, ["name"]),
        (20, 8, ["name", "load", "more"]),  # its bar comes before the column of the highest rank
        (24, 8, ["name", "load", "more", "most"]),
        (15, 8, ["name", "load", "more"]),  # not before those of low rank
    ],
)
def test_the_columns_of_the_highest_rank_are_left_out_first(width: int, most_bar: int, headings: list[str]) -> None:
    assert [each.heading for each in fitted(TABLE, width, most_bar)] == headings


def test_a_column_that_says_nothing_is_left_out_unless_it_names_the_rows() -> None:
    assert [each.heading for each in fitted([column("name", 0, ""), column("x", 1, "", "")], 80)] == ["name"]
    assert fitted([], 80) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.booleans()), max_size=9), st.integers(10, 120))
def test_what_fits_is_within_the_width_and_bars_fill_what_is_left(
    shapes: list[tuple[int, int, bool]], width: int
) -> None:
    columns = [column("x" * length, rank, "1", shares=[1.0] if has_share else ()) for rank, length, has_share in shapes]
    found = fitted(columns, width, 16)
    if sum(each.width + 1 for each in columns if not each.rank) <= width:
        assert sum(each.width + 1 for each in found) <= width
    lengths = [each.cells[0].text.count("━") for each in found]
    assert all(length == 0 or LEAST_BAR <= length <= 16 for length in lengths)


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(None, "    "), (0, "    "), (0.13, "╸   "), (0.5, "━━  "), (0.6, "━━╸ "), (1, "━━━━"), (7, "━━━━")],
)
def test_a_bar_is_as_long_as_its_share(share: float | None, drawn: str) -> None:
    assert bar(share, 4) == drawn


@pytest.mark.parametrize(
    ("values", "length", "drawn"),
    [
        ([], 9, ""),
        ([0, 100], 9, "▁█"),
        ([0, 0, 100, 100], 2, "▁█"),
        ([50], 9, "▅"),
        ([-9, 900], 2, "▁█"),
        ([5, 5], 0, ""),
    ],
)
def test_a_curve_has_the_mean_of_each_part_as_a_step(values: list[float], length: int, drawn: str) -> None:
    assert curve(values, length, 0, 100) == drawn


def test_a_curve_without_a_height_is_flat() -> None:
    assert curve([3.0, 3.0], 9, 3.0, 3.0) == "▁▁"
