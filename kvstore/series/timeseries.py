"""A time series as two arrays, and its lossless compression into blocks.

Times become differences of differences, which are 0 for a steady rate. Values that are decimal numbers with few digits,
as sensors report them, become integers and then differences; others keep their 64 bits, each XORed with its
predecessor's. Both are packed as columns (:mod:`laggard.kvstore.series.columns`), and deflated if that makes them
smaller.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.columns import RAW, decimals_of, deflated, inflated, pack, planes, scaled, unpack, xored

Times = NDArray[np.int64]
"""Unix times in microseconds."""
Floats = NDArray[np.float64]
Piece = tuple[bytes, bytes]
"""Some times and values of one series, as the memory of arrays."""

_HEAD = struct.Struct("<qqIqbbb")
"""First and last time, count, first step, decimals of the values (-1: 64 bits), widths of both."""
_SPAN = struct.Struct("<qqI")
"""The beginning of the head: first and last time, count."""
BLOCK_OVERHEAD_BYTES = 33
"""What CPython adds to each bytes object."""


# Not frozen, since creating a frozen one takes four times as long, and a query creates hundreds.
@dataclass(slots=True)
class TimeSeries:
    """The samples of one metric with one set of tags."""

    metric: str
    tags: Mapping[str, str]  # for example `{"host": "node1", "gpu": "0"}`
    times_us: Times  # `(n_samples,)` each: Unix times in microseconds, in increasing order, and values
    values: Floats


def within(times_us: Times, start_us: int, end_us: int) -> slice:
    """Return the slice of increasing times that lies in a range, both ends included."""
    return slice(int(times_us.searchsorted(start_us, "left")), int(times_us.searchsorted(end_us, "right")))


def tidy(times_us: Times, values: Floats) -> tuple[Times, Floats]:
    """Return samples sorted by time (stably), without those that are not finite."""
    finite = np.isfinite(values)
    if not finite.all():
        times_us, values = times_us[finite], values[finite]
    if (times_us[1:] < times_us[:-1]).any():
        order = np.argsort(times_us, kind="stable")
        times_us, values = times_us[order], values[order]
    return times_us, values


def assembled(pieces: Sequence[Piece], start_us: int, end_us: int) -> tuple[Times, Floats]:
    """Return a series of its pieces: tidy, and cut to a time range, both ends included."""
    times_us = np.frombuffer(b"".join([times for times, _ in pieces]), dtype=np.int64)
    times_us, values = tidy(times_us, np.frombuffer(b"".join([values for _, values in pieces]), dtype=np.float64))
    kept = within(times_us, start_us, end_us)
    return times_us[kept], values[kept]


def distinct_times(series: Sequence[TimeSeries]) -> tuple[list[int], list[Times]]:
    """Return, for each series, the index of its times among the distinct arrays of times, and these arrays."""
    arrays = {id(each.times_us): each.times_us for each in series}
    raw = {key: times_us.tobytes() for key, times_us in arrays.items()}
    different = {raw[key]: times_us for key, times_us in arrays.items()}
    order = {each: place for place, each in enumerate(different)}
    places = {key: order[each] for key, each in raw.items()}
    return [places[id(each.times_us)] for each in series], list(different.values())


def encode_block(times_us: Times, values: Floats) -> bytes:
    """Pack samples, sorted by time, into bytes."""
    steps = np.diff(times_us)
    first_step = int(steps[0]) if len(steps) else 0
    times_width, packed_times = pack(np.diff(steps, prepend=first_step))
    kind = decimals_of(values)
    if kind == RAW:
        values_width, packed_values = 8, xored(values)
    else:
        values_width, packed_values = pack(np.diff(scaled(values, kind), prepend=np.int64(0)))
    head = (int(times_us[0]), int(times_us[-1]), len(times_us), first_step, kind, times_width, values_width)
    return _HEAD.pack(*head) + deflated(packed_times + packed_values)


def decode_block(block: bytes) -> tuple[Times, Floats]:
    """Return the samples that :func:`encode_block` packed."""
    first, _, count, first_step, kind, times_width, values_width = _HEAD.unpack_from(block)
    split = (count - 1) * times_width
    body = inflated(memoryview(block)[_HEAD.size :], split + count * values_width)
    times_us = np.empty(count, dtype=np.int64)
    times_us[0] = first
    times_us[1:] = first + np.cumsum(first_step + np.cumsum(unpack(body[:split], times_width, count - 1)))
    if kind == RAW:
        bits = planes(body[split:], 8, count).view(np.uint64)
        return times_us, np.bitwise_xor.accumulate(bits).view(np.float64)
    numbers = np.cumsum(unpack(body[split:], values_width, count))
    return times_us, numbers / 10.0**kind


def block_span(block: bytes) -> tuple[int, int, int]:
    """Return a block's first time, last time, and number of samples, without unpacking it."""
    first, last, count = _SPAN.unpack_from(block)
    return first, last, count
