"""Lossless packing of columns of numbers into bytes.

Integers are written in the fewest bytes that hold them all, first bytes first. Decimal numbers with few digits become
integers (after Afroozeh, Kuffo and Boncz, "ALP", 2023); others keep their 64 bits, each XORed with a number that is
likely to be close (after Pelkonen et al., "Gorilla", 2015).
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

RAW = -1
"""Number of decimals of numbers that are no short decimals."""
MAX_DECIMALS = 6  # more are no numbers that somebody has rounded
EXACT = 2.0**52  # up to here floats hold every whole number, and halves
_WIDTHS = (0, 1, 2, 4, 8)  # NumPy's integers, in bytes
_FIRST = struct.Struct("<qb")
"""First number, and width of the differences in bytes."""


def decimals_of(*columns: Floats) -> int:
    """Return the fewest decimals that hold all numbers exactly, or :data:`RAW` if there are too many."""
    largest = max((float(np.abs(column).max(initial=0.0)) for column in columns), default=0.0)
    if not np.isfinite(largest) or any(np.isnan(column).any() for column in columns):
        return RAW
    for decimals in range(MAX_DECIMALS + 1):
        scale = 10.0**decimals
        if largest * scale >= EXACT:
            return RAW
        numbers = [np.rint(column * scale) for column in columns]
        if all((number / scale == column).all() for number, column in zip(numbers, columns, strict=True)):
            # an integer has no negative zero
            signed = any((np.signbit(c) & (n == 0)).any() for n, c in zip(numbers, columns, strict=True))
            return RAW if signed else decimals
    return RAW


def scaled(values: Floats, decimals: int) -> Integers:
    """Return decimal numbers as integers, in units of the last decimal."""
    return np.rint(values * 10.0**decimals).astype(np.int64)


def encode_integers(numbers: Integers) -> bytes:
    """Pack integers whose differences are small, in the fewest bytes that hold each; there is at least one."""
    steps = np.diff(numbers)
    folded = (steps << 1 ^ steps >> 63).view(np.uint64)  # small negative ones count as small too
    largest = int(folded.max(initial=0))
    width = next(width for width in _WIDTHS if largest < 1 << 8 * width)
    body = _planes(folded.astype(f"<u{width}")) if width else b""
    return _FIRST.pack(int(numbers[0]), width) + _deflated(body)


def decode_integers(block: bytes, count: int) -> Integers:
    """Return the integers that :func:`encode_integers` packed."""
    try:
        first, width = _FIRST.unpack_from(block)
    except struct.error as error:
        raise ValueError(f"not a packed column: {error}") from error
    if width not in _WIDTHS:
        raise ValueError(f"not a packed column: numbers of {width} bytes")
    body = _inflated(memoryview(block)[_FIRST.size :], width * (count - 1))
    folded = _of_planes(body, width).astype(np.uint64) if width else np.zeros(count - 1, dtype=np.uint64)
    steps = (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(np.int64)
    return np.concatenate([[np.int64(first)], steps]).cumsum()


def encode_words(words: Words) -> bytes:
    """Pack 64-bit words, of which many share their first bytes or are 0."""
    return _deflated(_planes(np.ascontiguousarray(words)))


def decode_words(block: bytes, count: int) -> Words:
    """Return the words that :func:`encode_words` packed."""
    return _of_planes(_inflated(memoryview(block), 8 * count), 8)


def encode_numbers(values: Floats, decimals: int) -> bytes:
    """Pack numbers that change little from one to the next, and have so many decimals; there is at least one."""
    if decimals != RAW:
        return encode_integers(scaled(values, decimals))
    words = values.view(np.uint64)
    return encode_words(words ^ np.append(np.uint64(0), words[:-1]))


def decode_numbers(block: bytes, count: int, decimals: int) -> Floats:
    """Return the numbers that :func:`encode_numbers` packed."""
    if decimals != RAW:
        return decode_integers(block, count) / 10.0**decimals
    return np.bitwise_xor.accumulate(decode_words(block, count)).view(np.float64)


def _planes(words: NDArray[np.unsignedinteger]) -> bytes:
    """Return the first bytes of all words, then all second bytes, and so on."""
    return words.view(np.uint8).reshape(-1, words.itemsize).T.tobytes()


def _of_planes(body: memoryview, width: int) -> NDArray[Any]:
    return np.frombuffer(body, np.uint8).reshape(width, -1).T.reshape(-1).copy().view(f"<u{width}")


def _deflated(body: bytes) -> bytes:
    """Return the bytes after a mark, deflated if that makes them smaller."""
    shorter = zlib.compress(body, level=1, wbits=-15)
    return b"\1" + shorter if len(shorter) < len(body) else b"\0" + body


def _inflated(block: memoryview, size_bytes: int) -> memoryview:
    """Return what :func:`_deflated` was given, never allocating more than its size."""
    if len(block) and block[0] == 0:
        body = block[1:]
    else:
        inflator = zlib.decompressobj(wbits=-15)
        try:
            body = memoryview(inflator.decompress(block[1:], size_bytes + 1))
        except zlib.error as error:
            raise ValueError(f"not a packed column: {error}") from error
    if len(body) != size_bytes:
        raise ValueError(f"a packed column of {len(body)} bytes or more should have {size_bytes}")
    return body
