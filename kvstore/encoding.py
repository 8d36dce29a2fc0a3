"""Blocks of samples as few bytes: what is regular about times and values is written once.

Times become differences of differences, which are 0 for a steady rate. Values that are decimal numbers with few digits,
as sensors give them, become whole numbers (after Afroozeh, Kuffo and Boncz, "ALP", 2023) and then differences; others
keep their 64 bits, each combined with its predecessor's (after Pelkonen et al., "Gorilla", 2015). Both are written in
the fewest bytes that hold them, all first bytes first, and deflated where that helps. Nothing is lost.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from kvstore.timeseries import Floats, Times

__all__ = ["BLOCK_OVERHEAD_BYTES", "block_span", "decode_block", "encode_block"]

_HEAD = struct.Struct("<qqIqbbb?")
"""First and last time, count, first step, decimals of the values (-1: 64 bits), widths of both, whether deflated."""
_SPAN = struct.Struct("<qqI")
BLOCK_OVERHEAD_BYTES = 33
"""What CPython adds to each bytes object."""

_MAX_DECIMALS = 6
_EXACT = 2.0**52
_RAW = -1


def encode_block(times_us: Times, values: Floats) -> bytes:
    """Pack samples, in the order of time, into bytes.

    Parameters
    ----------
    times_us, values
        ``(n,)`` each, with n at least 1; values may be NaN or infinite.
    """
    steps = np.diff(times_us)
    first_step = int(steps[0]) if len(steps) else 0
    times_width, packed_times = _pack(np.diff(steps, prepend=first_step))
    kind, numbers = _numbers(values)
    values_width, packed_values = _pack(np.diff(numbers, prepend=np.int64(0))) if kind != _RAW else (8, _xored(values))
    body = packed_times + packed_values
    deflated = zlib.compress(body, level=1, wbits=-15)
    smaller = len(deflated) < len(body)
    head = (int(times_us[0]), int(times_us[-1]), len(times_us), first_step, kind, times_width, values_width, smaller)
    return _HEAD.pack(*head) + (deflated if smaller else body)


def decode_block(block: bytes) -> tuple[Times, Floats]:
    """Unpack what :func:`encode_block` wrote."""
    first, _, count, first_step, kind, times_width, values_width, deflated = _HEAD.unpack_from(block)
    body = memoryview(block)[_HEAD.size :]
    if deflated:
        body = memoryview(zlib.decompress(body, wbits=-15))
    split = (count - 1) * times_width
    times_us = np.empty(count, dtype=np.int64)
    times_us[0] = first
    times_us[1:] = first + np.cumsum(first_step + np.cumsum(_unpack(body[:split], times_width, count - 1)))
    if kind == _RAW:
        bits = _planes(body[split:], 8, count).view(np.uint64)
        return times_us, np.bitwise_xor.accumulate(bits).view(np.float64)
    numbers = np.cumsum(_unpack(body[split:], values_width, count))
    return times_us, numbers / 10.0**kind


def block_span(block: bytes) -> tuple[int, int, int]:
    """Return a block's first time, last time, and number of samples, without unpacking it."""
    first, last, count = _SPAN.unpack_from(block)
    return first, last, count


def _numbers(values: Floats) -> tuple[int, NDArray[np.int64]]:
    """Return the number of decimals that all values have, and the values as multiples of the last one."""
    if np.isfinite(values).all():
        largest = float(np.abs(values).max())
        for decimals in range(_MAX_DECIMALS + 1):
            scale = 10.0**decimals
            if largest * scale >= _EXACT:
                break
            scaled = np.rint(values * scale)
            if (scaled / scale == values).all():
                if (np.signbit(values) & (scaled == 0)).any():
                    break  # a whole number has no negative zero
                return decimals, scaled.astype(np.int64)
    return _RAW, np.empty(0, dtype=np.int64)


def _pack(numbers: NDArray[np.int64]) -> tuple[int, bytes]:
    """Write whole numbers in the fewest bytes that hold them all, small negative ones as small too."""
    folded = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    largest = int(folded.max(initial=0))
    width = next((width for width in (0, 1, 2, 4) if largest < 1 << 8 * width), 8)
    if width == 0:
        return 0, b""
    return width, folded.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T.tobytes()


def _unpack(body: memoryview, width: int, count: int) -> NDArray[np.int64]:
    if width == 0:
        return np.zeros(count, dtype=np.int64)
    folded = _planes(body, width, count).view(f"<u{width}").astype(np.uint64)
    return (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(np.int64)


def _planes(body: memoryview, width: int, count: int) -> NDArray[np.uint8]:
    return np.frombuffer(body, dtype=np.uint8, count=count * width).reshape(width, count).T.reshape(-1).copy()


def _xored(values: Floats) -> bytes:
    bits = values.view(np.uint64)
    mixed = bits.copy()
    mixed[1:] ^= bits[:-1]
    return mixed.view(np.uint8).reshape(-1, 8).T.tobytes()
