"""Blocks of samples: how few bytes they take, and that nothing is lost; and what is done with arrays of samples."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.kvstore.series.timeseries import (
    BLOCK_OVERHEAD_BYTES,
    TimeSeries,
    assembled,
    block_span,
    decode_block,
    distinct_times,
    encode_block,
    tidy,
    within,
)

HEAD_BYTES = 23 + 2 * 10  # of a block, and of each of its two columns
COUNT = 2000
STEADY = np.arange(COUNT, dtype=np.int64) * 500_000
RNG = np.random.default_rng(0)


def times(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def walk(bits: int, count: int = COUNT) -> NDArray[np.int64]:
    """Return numbers whose differences take that many bits with their sign, all of them used."""
    steps = RNG.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), count)
    steps[1] = -(2 ** (bits - 1))  # the widest
    return np.cumsum(steps)


def exact(times_us: NDArray[np.int64], values: NDArray[np.float64]) -> int:
    """Return the bytes of a block, which gives back every bit."""
    block = encode_block(times_us, values)
    back_us, back = decode_block(block)
    assert back_us.tolist() == times_us.tolist()
    assert back.tobytes() == values.tobytes()
    assert block_span(block) == (times_us[0], times_us[-1], len(times_us))
    return len(block) - HEAD_BYTES


@pytest.mark.parametrize(("bits", "width"), [(8, 1), (16, 2), (32, 4)])
@pytest.mark.parametrize("decimals", [0, 1, 3])
def test_whole_and_decimal_numbers_take_the_bytes_of_their_differences(bits: int, width: int, decimals: int) -> None:
    assert exact(STEADY, walk(bits) / 10.0**decimals) == width * (COUNT - 1)
    assert exact(STEADY, walk(bits + 1) / 10.0**decimals) > width * COUNT


def test_six_decimals_are_packed_and_seven_keep_their_bits() -> None:
    assert exact(STEADY, walk(8) / 1e6) == COUNT - 1
    assert exact(STEADY, walk(8) / 1e7) > 3 * COUNT


@pytest.mark.parametrize(("bits", "width"), [(8, 1), (16, 2), (32, 4)])
def test_times_take_the_bytes_of_how_much_their_steps_differ(bits: int, width: int) -> None:
    steps = 2**40 + np.cumsum(RNG.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), COUNT - 1))
    irregular = np.concatenate([[5], 5 + np.cumsum(steps)])

    assert exact(irregular, np.zeros(COUNT)) == width * (COUNT - 1)


def test_a_steady_rate_and_a_steady_value_take_nothing() -> None:
    assert exact(STEADY, np.zeros(COUNT)) == 0
    assert exact(STEADY[:1], np.zeros(1)) == 0
    assert exact(STEADY, np.full(COUNT, 7.5)) < 30


@pytest.mark.parametrize(
    "values",
    [
        [-0.0, 2.0],
        [0.0, -0.0, 1.5],
        [1e308, 5e-324],
        [2.0**52, 1.0],
        [2.0**52 - 1, 1.0],
        [2.0**63, -(2.0**63)],
        [-1.0, -255.0, -256.0, 0.0],
        [0.1, 0.2, 0.30000000000000004],
        [np.nan, np.inf, -np.inf, -0.0],
        [3.141592653589793],
    ],
)
def test_no_value_loses_a_bit(values: list[float]) -> None:
    exact(np.arange(len(values), dtype=np.int64), np.array(values))


@pytest.mark.parametrize("moments", [[0], [5, 5, 5], [0, 2**51], [1, 3, 4, 4, 100], [0, 2**40, 2**40 + 1]])
def test_no_time_is_lost(moments: list[int]) -> None:
    exact(times(*moments), np.arange(len(moments)) / 3)


def test_a_bytes_object_takes_as_much_as_the_store_assumes() -> None:
    assert sys.getsizeof(b"") == BLOCK_OVERHEAD_BYTES


def test_a_range_holds_both_of_its_ends() -> None:
    held = times(1, 2, 2, 3, 5)

    ranges = [(2, 3), (2, 2), (4, 4), (0, 9), (6, 9)]
    assert [held[within(held, *each)].tolist() for each in ranges] == [[2, 2, 3], [2, 2], [], [1, 2, 2, 3, 5], []]


def test_tidying_keeps_the_order_of_equal_times() -> None:
    times_us, values = tidy(times(3, 1, 3, 2, 1), np.array([1.0, 2.0, 3.0, np.nan, 4.0]))

    assert (times_us.tolist(), values.tolist()) == ([1, 1, 3, 3], [2, 4, 1, 3])


def test_pieces_become_a_series_cut_to_the_range() -> None:
    def piece(moments: list[int], values: list[float]) -> tuple[bytes, bytes]:
        return times(*moments).tobytes(), np.array(values).tobytes()

    one = [piece([1, 2], [1.0, 2.0]), piece([3], [3.0])]
    other = [piece([3, 1, 2], [7.0, 8.0, np.nan])]

    found = assembled([one, other, []], 2, 3)

    assert [column.tolist() for column in found] == [[0, 0, 1], [2, 3, 3], [2, 3, 7]]


def test_series_with_equal_times_are_found() -> None:
    shared = times(1, 2)
    moments = [shared, times(1, 3), shared, times(1, 2)]

    places, different = distinct_times([TimeSeries("m", {}, each, np.zeros(2)) for each in moments])

    assert (places, [each.tolist() for each in different]) == ([0, 1, 0, 0], [[1, 2], [1, 3]])
