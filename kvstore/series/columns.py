"""Lossless packing of columns of numbers into bytes.

Integers are written in the fewest bytes that hold them all, first bytes first. Decimal numbers with few digits become
integers (after Afroozeh, Kuffo and Boncz, "ALP", 2023); others keep their 64 bits, each XORed with a number that is
likely to be close (after Pelkonen et al., "Gorilla", 2015).
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

RAW = -1
"""Number of decimals of numbers that are no short decimals."""
MAX_DECIMALS = 6
EXACT = 2.0**52
_WIDTHS = (0, 1, 2, 4, 8)
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


def pack(numbers: Integers) -> tuple[int, bytes]:
    """Return the fewest bytes that hold each of some integers, and them; small negative ones count as small too."""
    folded = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    largest = int(folded.max(initial=0))
    width = next((width for width in _WIDTHS if largest < 1 << 8 * width), 8)
    if width == 0:
        return 0, b""
    return width, folded.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T.tobytes()


def unpack(body: memoryview, width: int, count: int) -> Integers:
    """Return the integers that :func:`pack` packed."""
    if width == 0:
        return np.zeros(count, dtype=np.int64)
    folded = planes(body, width, count).view(f"<u{width}").astype(np.uint64)
    return (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(np.int64)


def planes(body: memoryview, width: int, count: int) -> NDArray[np.uint8]:
    """Return the bytes of numbers of which all first bytes were written first, then all second bytes, and so on."""
    return np.frombuffer(body, dtype=np.uint8, count=count * width).reshape(width, count).T.reshape(-1).copy()


def xored(values: Floats) -> bytes:
    """Return the bits of each number, XORed with its predecessor's, first bytes first."""
    bits = values.view(np.uint64)
    mixed = bits.copy()
    mixed[1:] ^= bits[:-1]
    return mixed.view(np.uint8).reshape(-1, 8).T.tobytes()


def encode_integers(numbers: Integers) -> bytes:
    """Pack integers whose differences are small: a steady rise takes no room. There is at least one."""
    width, body = pack(np.diff(numbers))
    return _FIRST.pack(int(numbers[0]), width) + deflated(body)


def decode_integers(block: bytes, count: int) -> Integers:
    """Return the integers that :func:`encode_integers` packed."""
    try:
        first, width = _FIRST.unpack_from(block)
    except struct.error as error:
        raise ValueError(f"not a packed column: {error}") from error
    if width not in _WIDTHS:
        raise ValueError(f"not a packed column: numbers of {width} bytes")
    body = inflated(memoryview(block)[_FIRST.size :], width * (count - 1))
    numbers = np.empty(count, dtype=np.int64)
    numbers[0] = first
    numbers[1:] = unpack(body, width, count - 1)
    return numbers.cumsum()


def encode_words(words: Words) -> bytes:
    """Pack 64-bit words, of which many share their first bytes or are 0."""
    return deflated(np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8).T.tobytes())


def decode_words(block: bytes, count: int) -> Words:
    """Return the words that :func:`encode_words` packed."""
    return planes(inflated(memoryview(block), 8 * count), 8, count).view(np.uint64)


def deflated(body: bytes) -> bytes:
    """Return the bytes after a mark, deflated if that makes them smaller."""
    shorter = zlib.compress(body, level=1, wbits=-15)
    return b"\1" + shorter if len(shorter) < len(body) else b"\0" + body


def inflated(block: memoryview, size_bytes: int) -> memoryview:
    """Return what :func:`deflated` was given, never allocating more than its size."""
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
