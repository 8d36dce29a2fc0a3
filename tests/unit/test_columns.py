"""Packed columns: what becomes a short decimal, how many bytes integers take, and what is refused."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from laggard.kvstore.series.columns import (
    RAW,
    decimals_of,
    decode_integers,
    decode_numbers,
    decode_words,
    encode_integers,
    encode_numbers,
    encode_words,
    scaled,
)

HEAD_BYTES = 9  # the first number, and the width of the differences
LARGEST = 2.0**52


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([], 0),
        ([0.0, 7.0], 0),
        ([1.0, 0.5], 1),
        ([-0.125], 3),
        ([0.000001], 6),
        ([0.0000001], RAW),
        ([1 / 3], RAW),
        ([LARGEST - 1], 0),
        ([1 - LARGEST], 0),
        ([LARGEST], RAW),
        ([LARGEST / 16 + 0.5], 1),
        ([LARGEST / 10 + 0.5, 1.5], RAW),  # of its tenths floats do not hold every one
        ([5.0, np.nan], RAW),
        ([1e308, np.nan], RAW),
        ([5.0, -np.inf], RAW),
        ([5.0, -0.0], RAW),
        ([0.5, -0.0], RAW),
    ],
)
def test_decimals_are_the_fewest_that_hold_all_numbers(values: list[float], decimals: int) -> None:
    column = np.array(values)
    assert decimals_of(column) == decimals_of(np.zeros(1), column) == decimals_of(column, np.zeros(1)) == decimals


def test_no_column_has_no_decimals() -> None:
    assert decimals_of() == 0


@pytest.mark.parametrize(
    ("value", "decimals", "integer"), [(1.5, 1, 15), (-0.29, 2, -29), (0.1 + 0.2, 1, 3), (4, 0, 4)]
)
def test_a_decimal_number_is_counted_in_units_of_its_last_decimal(value: float, decimals: int, integer: int) -> None:
    assert scaled(np.array([value]), decimals).tolist() == [integer]


@pytest.mark.parametrize(
    ("step", "width"),
    [
        (0, 0),
        (1, 1),
        (-1, 1),
        (127, 1),
        (-128, 1),
        (128, 2),
        (-129, 2),
        (2**15 - 1, 2),
        (-(2**15), 2),
        (2**15, 4),
        (-(2**31), 4),
        (2**31, 8),
        (-(2**63), 8),
        (2**63 - 1, 8),
    ],
)
def test_integers_take_the_fewest_bytes_that_hold_their_steps(step: int, width: int) -> None:
    numbers = np.array([0, step])
    block = encode_integers(numbers)
    assert block[HEAD_BYTES - 1] == width
    assert decode_integers(block, 2).tolist() == numbers.tolist()
    assert decode_integers(encode_integers(numbers[1:]), 1).tolist() == [step]


def test_what_repeats_itself_is_deflated_and_what_does_not_is_not() -> None:
    words = np.random.default_rng(1).integers(0, 2**63, 1000).astype(np.uint64)
    assert len(encode_words(words)) == 1 + 8 * 1000
    same = np.full(1000, 12345, dtype=np.uint64)
    assert len(encode_words(same)) < 100
    for each in (words, same, words & np.uint64(0xFF)):
        assert decode_words(encode_words(each), 1000).tolist() == each.tolist()


@pytest.mark.parametrize("values", [[1.25, -3.5, 1e6], [1 / 3, np.pi, -np.inf, -0.0]])
def test_numbers_come_back_bit_by_bit(values: list[float]) -> None:
    column = np.array(values)
    found = decode_numbers(encode_numbers(column, decimals_of(column)), len(values), decimals_of(column))
    assert found.tobytes() == column.tobytes()


def test_numbers_that_stay_about_the_same_take_less_room() -> None:
    near = 300 + np.random.default_rng(1).random(1000) / 1000  # they share their first bytes
    assert len(encode_numbers(near, RAW)) < 6.5 * 1000


NUMBERS = encode_integers(np.array([5, 6, 8]))


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (b"", "not a packed column"),
        (NUMBERS[: HEAD_BYTES - 1], "not a packed column"),
        (NUMBERS[:HEAD_BYTES], "of 0 bytes or more should have 2"),
        (NUMBERS[:-1], "of 1 bytes or more should have 2"),
        (NUMBERS + b"\0", "of 3 bytes or more should have 2"),
        (struct.pack("<qb", 5, 3) + NUMBERS[HEAD_BYTES:], "numbers of 3 bytes"),
        (struct.pack("<qb", 5, -1) + NUMBERS[HEAD_BYTES:], "numbers of -1 bytes"),
        (NUMBERS[:HEAD_BYTES] + b"\1what is not deflated", "not a packed column"),
        (NUMBERS[:HEAD_BYTES] + b"\1" + zlib.compress(bytes(3), wbits=-15), "of 3 bytes or more should have 2"),
        (NUMBERS[:HEAD_BYTES] + b"\1" + zlib.compress(bytes(1), wbits=-15), "of 1 bytes or more should have 2"),
    ],
)
def test_what_is_no_packed_column_is_refused(block: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        decode_integers(block, 3)
    assert decode_integers(NUMBERS, 3).tolist() == [5, 6, 8]
