"""Buckets that were computed from samples are kept, and computed anew only if samples of their time come late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.kvstore.series.sample_store import SampleStore, StoredSeries, key_of
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.store.reductions import MAX_KEPT_OF_ONE, Reductions

STEP_US = 1_000_000


class ReadStore(SampleStore):
    """A store that notes from when on its series are read."""

    def __init__(self) -> None:
        super().__init__(1e9, clock=lambda: 0.0)
        self.starts_us: list[int] = []

    def samples_of_all(
        self, several: Sequence[StoredSeries], start_us: int, end_us: int
    ) -> tuple[NDArray[np.intp], Times, Floats]:
        self.starts_us.append(start_us)
        return super().samples_of_all(several, start_us, end_us)

    def put(self, second: float, *values: float, host: str = "a") -> None:
        times_us = np.full(len(values), round(second * STEP_US), dtype=np.int64)
        self.extend(key_of("m", {"host": host}), times_us, np.array(values))


def medians(reductions: Reductions, begin_s: int, end_s: int, step_us: int = STEP_US) -> dict[int, float]:
    found = list(reductions.read(["m"], ("p50", step_us), begin_s * STEP_US, end_s * STEP_US, lambda _: True))
    return {
        time_us // STEP_US: value for each in found for time_us, value in zip(each.times_us, each.values, strict=True)
    }


def test_only_what_is_new_and_the_bucket_that_may_still_grow_are_read_again() -> None:
    store = ReadStore()
    reductions = Reductions(store)
    for second in range(10):
        store.put(second, second, second + 1, second + 5)
    expected = {second: second + 1.0 for second in range(10)}

    assert medians(reductions, 0, 20) == expected
    store.put(9.5, 9, 9)
    store.put(10, 7)
    assert medians(reductions, 2, 20) == {**dict(list(expected.items())[2:]), 9: 9, 10: 7}
    assert medians(reductions, 3, 6) == {second: second + 1.0 for second in (3, 4, 5)}

    assert store.starts_us == [0, 9 * STEP_US, 10 * STEP_US]


def test_a_late_sample_changes_its_bucket() -> None:
    store = ReadStore()
    reductions = Reductions(store)
    for second in range(10):
        store.put(second, 1)
    medians(reductions, 0, 20)

    store.put(3, 5, 5)

    assert medians(reductions, 0, 20) == {**dict.fromkeys(range(10), 1.0), 3: 5.0}
    assert store.starts_us == [0, 0]


@pytest.mark.parametrize(("first", "second"), [((0, 3), (6, 9)), ((6, 9), (0, 9))])
def test_a_range_that_does_not_follow_what_is_kept_is_computed_anew(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    store = ReadStore()
    reductions = Reductions(store)
    for at in range(10):
        store.put(at, at)

    assert medians(reductions, *first) == {at: float(at) for at in range(*first)}
    assert medians(reductions, *second) == {at: float(at) for at in range(*second)}


def test_functions_and_widths_are_apart_and_series_too() -> None:
    store = ReadStore()
    reductions = Reductions(store)
    for host, at in (("a", 0), ("a", 1), ("b", 2), ("b", 3)):
        store.put(at, at, host=host)

    assert medians(reductions, 0, 5) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert medians(reductions, 0, 5, 2 * STEP_US) == {0: 0.5, 2: 2.5}


def test_what_is_kept_is_limited_and_answers_are_not() -> None:
    store = ReadStore()
    reductions = Reductions(store, max_kept=30)
    n = MAX_KEPT_OF_ONE + 100
    store.extend(key_of("m", {"host": "a"}), np.arange(n, dtype=np.int64) * STEP_US, np.arange(n, dtype=np.float64))
    for host in "bcde":
        for at in range(n, n + 10):
            store.put(at, at, host=host)

    for _ in range(2):
        assert medians(reductions, 0, 2 * n) == {at: float(at) for at in range(n + 10)}
        assert sum(len(each.values) for each in reductions._kept.values()) == reductions._n_kept <= 30

    unlimited = Reductions(store)
    medians(unlimited, 0, 2 * n)
    assert max(len(each.values) for each in unlimited._kept.values()) == MAX_KEPT_OF_ONE
    assert medians(unlimited, 0, 2 * n) == medians(unlimited, n - 5, 2 * n) | {at: float(at) for at in range(n - 5)}


def test_huge_numbers_are_reduced_as_all_others_are() -> None:
    store = ReadStore()
    store.put(1, 1e300, -1e300)

    (found,) = Reductions(store).read(["m"], ("dev", STEP_US), 0, 5 * STEP_US, lambda _: True)

    assert found.values.tolist() == [float("inf")]
