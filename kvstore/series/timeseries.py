"""A time series as two arrays, and its lossless compression into blocks.

Times become differences of differences, which are 0 for a steady rate. Values that are decimal numbers with few digits,
as sensors report them, become integers and then differences; others keep their 64 bits, each XORed with its
predecessor's. Both are packed as columns (:mod:`laggard.kvstore.series.columns`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.columns import decimals_of, decode_integers, decode_numbers, encode_integers, encode_numbers

Times = NDArray[np.int64]
"""Unix times in microseconds."""
Floats = NDArray[np.float64]
Piece = tuple[bytes, bytes]
"""Some times and values of one series, as the memory of arrays."""

_HEAD = struct.Struct("<qqIbH")
"""First and last time, count, decimals of the values (-1: 64 bits), length of the packed times."""
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


def assembled(series: Sequence[Sequence[Piece]], start_us: int, end_us: int) -> tuple[NDArray[np.intp], Times, Floats]:
    """Return the samples of some series in a range, both ends included: the series of each, and all tidy."""
    lengths = [sum([len(times) for times, _ in pieces]) // 8 for pieces in series]
    places = np.repeat(np.arange(len(series)), lengths)
    times_us = np.frombuffer(b"".join([times for pieces in series for times, _ in pieces]), dtype=np.int64)
    values = np.frombuffer(b"".join([values for pieces in series for _, values in pieces]), dtype=np.float64)
    kept = (times_us >= start_us) & (times_us <= end_us) & np.isfinite(values)
    if not kept.all():
        places, times_us, values = places[kept], times_us[kept], values[kept]
    if ((times_us[1:] < times_us[:-1]) & (places[1:] == places[:-1])).any():
        order = np.lexsort((times_us, places))
        times_us, values = times_us[order], values[order]
    return places, times_us, values


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
    first_us, last_us, decimals = int(times_us[0]), int(times_us[-1]), decimals_of(values)
    after_us = 2 * last_us - int(times_us[-2:][0])  # as if the last step were repeated, so that there is at least one
    steps = encode_integers(np.diff(times_us, append=after_us))
    head = _HEAD.pack(first_us, last_us, len(times_us), decimals, len(steps))
    return head + steps + encode_numbers(values, decimals)


def decode_block(block: bytes) -> tuple[Times, Floats]:
    """Return the samples that :func:`encode_block` packed."""
    first_us, _, count, decimals, length = _HEAD.unpack_from(block)
    end = _HEAD.size + length
    steps = decode_integers(block[_HEAD.size : end], count)
    return first_us + np.cumsum(steps) - steps, decode_numbers(block[end:], count, decimals)


def block_span(block: bytes) -> tuple[int, int, int]:
    """Return a block's first time, last time, and number of samples, without unpacking it."""
    first, last, count = _SPAN.unpack_from(block)
    return first, last, count
