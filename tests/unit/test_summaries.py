"""Tables of summaries: their order, what merging buckets keeps, and what functions make of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from laggard.telemetry.store.summaries import (
    COLUMNS,
    by_series_and_time,
    columns_for,
    concatenated,
    empty,
    merged,
    n_rows,
    of_samples,
    reduced,
    where,
)
from laggard.telemetry.store.summaries import Summaries as Rows

NAN, INF = float("nan"), float("inf")


def samples(*drawn: tuple[int, int, float]) -> Rows:
    """Return rows of samples: series, time and value of each."""
    series, times_us, values = (np.array([each[place] for each in drawn]) for place in range(3))
    return of_samples(series.astype(np.int64), times_us.astype(np.int64), values.astype(np.float64))


def listed(rows: Rows, *names: str) -> list[tuple[float, ...]]:
    return list(zip(*(rows[name].tolist() for name in names), strict=True))


def test_samples_that_are_not_finite_have_no_row() -> None:
    rows = samples((1, 5, 2.0), (1, 6, NAN), (2, 7, -INF), (2, 8, 3.0))
    assert listed(rows, *COLUMNS) == [(1, 5, 1, 2, 2, 2, 5, 2), (2, 8, 1, 3, 3, 3, 8, 3)]


@pytest.mark.parametrize("columns", [COLUMNS, ("series", "start_us"), ("series", "last")])
def test_tables_are_joined_one_after_the_other(columns: Sequence[str]) -> None:
    one, two = samples((1, 5, 2.0)), samples((0, 3, 4.0), (0, 2, 1.0))
    for parts, expected in (([], []), ([one], [1]), ([one, two], [1, 0, 0]), ([two, one, one], [0, 0, 1, 1])):
        found = concatenated(parts, columns)
        assert (tuple(found), found["series"].tolist(), n_rows(found)) == (tuple(columns), expected, len(expected))
    for name, column in empty(columns).items():
        assert (len(column), column.dtype) == (0, one[name].dtype)


@pytest.mark.parametrize(
    ("drawn", "order"),
    [
        ([(0, 1), (0, 2), (1, 1)], [0, 1, 2]),
        ([(0, 2), (0, 1), (1, 1)], [1, 0, 2]),
        ([(1, 1), (0, 2)], [1, 0]),
        ([(0, 1), (1, 1), (0, 2)], [0, 2, 1]),
        ([(0, 1), (0, 3), (0, 2)], [0, 2, 1]),
        ([(0, 5), (0, 5), (0, 4)], [2, 0, 1]),  # of equal ones the later one stays behind
        ([(0, 5), (1, 4), (2, 3)], [0, 1, 2]),
        ([(0, 5), (1, 4), (1, 3)], [0, 2, 1]),
        ([], []),
        ([(7, 7)], [0]),
    ],
)
def test_rows_are_sorted_by_series_then_time(drawn: list[tuple[int, int]], order: list[int]) -> None:
    rows = samples(*((series, at, float(place)) for place, (series, at) in enumerate(drawn)))
    assert by_series_and_time(rows)["last"].tolist() == order
    without = {name: rows[name] for name in ("series", "start_us", "sum")}
    assert by_series_and_time(without)["sum"].tolist() == order


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ([], []),
        ([(0, 9, 4.0)], [(0, 0, 1, 4, 4, 4, 9, 4)]),
        ([(0, 9, 4.0), (0, 10, 1.0)], [(0, 0, 1, 4, 4, 4, 9, 4), (0, 10, 1, 1, 1, 1, 10, 1)]),
        ([(0, 10, 4.0), (0, 19, 1.0)], [(0, 10, 2, 5, 1, 4, 19, 1)]),
        ([(0, 19, 4.0), (0, 10, 1.0)], [(0, 10, 2, 5, 1, 4, 19, 4)]),
        ([(0, 12, 4.0), (1, 13, 1.0)], [(0, 10, 1, 4, 4, 4, 12, 4), (1, 10, 1, 1, 1, 1, 13, 1)]),
        (
            [(1, 10, 2.0), (0, 25, 1.0), (1, 11, 3.0), (0, 25, 5.0)],
            [(0, 20, 2, 6, 1, 5, 25, 5), (1, 10, 2, 5, 2, 3, 11, 3)],
        ),
    ],
)
def test_a_bucket_has_one_row_of_all_its_samples(
    drawn: list[tuple[int, int, float]], expected: list[tuple[float, ...]]
) -> None:
    found = merged(samples(*drawn), 10)
    assert listed(found, *COLUMNS) == expected
    assert listed(merged(found, 10), *COLUMNS) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("count", [2, 3]),
        ("sum", [5, 12]),
        ("min", [1, 2]),
        ("max", [4, 6]),
        ("avg", [2.5, 4]),
        ("last", [1, 2]),
        ("median", [4, 5]),  # of the averages of the rows
        ("dev", [1.5, 1.5]),
    ],
)
def test_a_function_is_computed_from_its_columns_alone(function: str, expected: list[float]) -> None:
    rows = merged(samples((0, 5, 4.0), (0, 15, 1.0), (0, 25, 6.0), (0, 26, 4.0), (0, 35, 2.0)), 10)
    given = where(concatenated([rows], columns_for(function)), slice(None))
    assert set(given) < set(COLUMNS)
    assert reduced(function, given, np.array([0, 2])).tolist() == expected
    each = reduced(function, where(given, slice(0, 2)), np.array([0, 1])).tolist()
    assert each == {"count": [1, 1], "dev": [0, 0]}.get(function, [4, 1])
