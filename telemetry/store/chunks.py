"""Packed summaries of one metric over some time, column by column, so that a query unpacks only what it needs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.columns import (
    MAX_DECIMALS,
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
from laggard.kvstore.series.timeseries import Floats
from laggard.telemetry.store.summaries import Summaries, n_rows

MAX_ROWS = 4_000_000
_HEAD = struct.Struct("<qqqIIb8I")
"""Width, first start and end of the buckets; rows, series, decimals; lengths of the columns."""

# What CPython adds: eight bytes objects of 33, their tuple (104), the chunk (120), and its place in a table (100).
OVERHEAD_BYTES = 588
# A sum of decimal numbers is one too, but for the errors of adding up.
_ROUNDING = 2.0**-50
_LARGEST = 2.0**52


@dataclass(frozen=True)
class Chunk:
    """Some rows, sorted by series and bucket."""

    width_us: int  # width of the buckets
    first_us: int  # start of the first bucket, and end of the last
    end_us: int
    n_rows: int  # how many
    n_series: int
    decimals: int  # of the values, or `RAW`
    # Series and the number of rows of each; buckets; counts; minima; maxima; sums; times and values of the last samples
    columns: tuple[bytes, ...]

    @cached_property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(map(len, self.columns)) + OVERHEAD_BYTES

    def series(self) -> NDArray[np.int64]:
        """Return the numbers of the series, in increasing order."""
        numbers: NDArray[np.int64] = decode_integers(self.columns[0], 2 * self.n_series)[: self.n_series]
        return numbers

    def to_bytes(self) -> bytes:
        """Return the chunk as bytes, for :func:`chunk_from_bytes`."""
        head = (self.width_us, self.first_us, self.end_us, self.n_rows, self.n_series, self.decimals)
        return b"".join((_HEAD.pack(*head, *map(len, self.columns)), *self.columns))

    def unpack(self, columns: Sequence[str]) -> Summaries:
        """Return the rows, with these columns."""
        runs, buckets, counts, lows, highs, sums, last_us, lasts = self.columns
        numbers, lengths = decode_integers(runs, 2 * self.n_series).reshape(2, -1)
        if (lengths < 0).any() or lengths.sum() != self.n_rows:
            raise ValueError("damaged summaries: the rows of the series do not add up")
        start_us = decode_integers(buckets, self.n_rows) * self.width_us
        found: Summaries = {"series": np.repeat(numbers, lengths), "start_us": start_us}
        if "last_us" in columns:
            found["last_us"] = start_us + decode_integers(last_us, self.n_rows)
        count = low = np.zeros(0)
        if not {"count", "sum"}.isdisjoint(columns):
            found["count"] = count = decode_integers(counts, self.n_rows).astype(np.float64)
        if not {"min", "max", "sum", "last"}.isdisjoint(columns):
            found["min"] = low = decode_numbers(lows, self.n_rows, self.decimals)
        with np.errstate(over="ignore", invalid="ignore"):  # huge numbers, or a damaged chunk
            for name, block, base in (("max", highs, low), ("last", lasts, low), ("sum", sums, low)):
                if name in columns:
                    found[name] = self._values(block, base * count if name == "sum" else base)
        return {name: found[name] for name in columns}

    def _values(self, block: bytes, base: Floats) -> Floats:
        if self.decimals == RAW:
            return (decode_words(block, self.n_rows) ^ base.view(np.uint64)).view(np.float64)
        numbers = decode_integers(block, self.n_rows) + scaled(base, self.decimals)
        result: Floats = numbers / 10.0**self.decimals
        return result


def chunk_from_bytes(data: bytes) -> Chunk:
    """Return the chunk that :meth:`Chunk.to_bytes` wrote; its sizes are checked before anything is unpacked."""
    try:
        width_us, first_us, end_us, rows, series, decimals, *lengths = _HEAD.unpack_from(data)
    except struct.error as error:
        raise ValueError(f"not packed summaries: {error}") from error
    if not 0 < series <= rows <= MAX_ROWS or sum(lengths) != len(data) - _HEAD.size:
        raise ValueError(f"not packed summaries: {rows} rows of {series} series in {len(data)} bytes")
    if width_us <= 0 or not RAW <= decimals <= MAX_DECIMALS:
        raise ValueError(f"not packed summaries: a width of {width_us} us with {decimals} decimals")
    ends = np.cumsum([_HEAD.size, *lengths]).tolist()
    columns = tuple(data[begin:end] for begin, end in pairwise(ends))
    return Chunk(width_us, first_us, end_us, rows, series, decimals, columns)


@np.errstate(over="ignore", invalid="ignore")
def pack_rows(rows: Summaries, width_us: int) -> Chunk:
    """Pack rows of a width, sorted by series and bucket; there is at least one."""
    series, start_us = rows["series"], rows["start_us"]
    begins = np.flatnonzero(np.diff(series, prepend=-1))
    lengths = np.diff(begins, append=len(series))
    low, count = rows["min"], rows["count"]
    decimals = decimals_of(low, rows["max"], rows["last"])
    sums = rows["sum"] if decimals == RAW else _snapped(rows, decimals)
    if sums is None:
        decimals, sums = RAW, rows["sum"]

    def values(column: Floats, base: Floats) -> bytes:
        if decimals == RAW:
            return encode_words(column.view(np.uint64) ^ base.view(np.uint64))
        return encode_integers(scaled(column, decimals) - scaled(base, decimals))

    columns = (
        encode_integers(np.concatenate([series[begins], lengths])),
        encode_integers(start_us // width_us),
        encode_integers(count.astype(np.int64)),
        encode_numbers(low, decimals),
        values(rows["max"], low),
        values(sums, low * count),
        encode_integers(rows["last_us"] - start_us),
        values(rows["last"], low),
    )
    first_us, end_us = int(start_us.min()), int(start_us.max()) + width_us
    return Chunk(width_us, first_us, end_us, n_rows(rows), len(begins), decimals, columns)


def _snapped(rows: Summaries, decimals: int) -> Floats | None:
    """Return the sums of decimal numbers without what adding them up as floats lost; None if they are not decimals."""
    count, low, sums = rows["count"], rows["min"], rows["sum"]
    unit = 10.0**decimals
    largest = count * np.maximum(np.abs(low), np.abs(rows["max"]))
    if (largest * unit >= _LARGEST).any():
        return None
    snapped: Floats = np.rint(sums * unit) / unit
    return None if (np.abs(snapped - sums) > _ROUNDING * count * largest).any() else snapped
