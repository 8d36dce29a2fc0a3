"""The samples of one node, in memory: a bounded window of every series, packed.

The newest samples of a series are plain arrays; each time that enough have come together they are packed into a block
(:mod:`kvstore.encoding`), and blocks are let go one by one as the window moves on. Samples are not State: they are
gone with the process that holds them, unless they were dumped.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvstore.encoding import BLOCK_OVERHEAD_BYTES, block_span, decode_block, encode_block
from kvstore.timeseries import Floats, Piece, Times, TimeSeries, assemble

__all__ = ["Newest", "SampleStore", "SeriesKey", "StoreSize", "Tags", "key_of"]

Tags = tuple[tuple[str, str], ...]
"""Pairs in the order of their keys."""
SeriesKey = tuple[str, Tags]

BLOCK_SAMPLES = 128
_LARGEST_BLOCK = 4096
_SECOND_US = 1_000_000
# A series' record, its key and its two arrays, measured with tracemalloc.
SERIES_OVERHEAD_BYTES = 700
_READ_TOGETHER = 256
# Beyond its bound the store lets go of enough to have peace for a while.
_TRIM_TO = 0.9


def key_of(metric: str, tags: Mapping[str, str]) -> SeriesKey:
    """Return the key of a series."""
    return metric, tuple(sorted(tags.items()))


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How much a store holds, and how much it had to refuse or to let go before its time."""

    series: int
    samples: int
    nbytes: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest sample of a series."""

    metric: str
    tags: dict[str, str]
    time_us: int
    value: float


# Dashboards ask for the same blocks again and again; mostly half a megabyte, at most 16, spares their unpacking.
@lru_cache(maxsize=256)
def _unpacked(block: bytes) -> Piece:
    times_us, values = decode_block(block)
    return times_us.tobytes(), values.tobytes()


class _Line:
    """One series: packed blocks, then the samples that are not packed yet."""

    __slots__ = ("blocks", "newest_us", "newest_value", "times_us", "values")

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.times_us = array("q")
        self.values = array("d")
        self.newest_us = -1
        self.newest_value = 0.0


class SampleStore:
    """A window of samples, for many writers and readers at once.

    Parameters
    ----------
    window_s
        Samples older than this, against ``clock``, are let go by :meth:`trim`.
    max_series
        Samples of further series are dropped and counted.
    max_bytes
        Beyond this the oldest samples go before their time, and are counted.
    clock
        Gives Unix time in seconds.
    """

    def __init__(
        self,
        window_s: float,
        *,
        clock: Callable[[], float],
        max_series: int = 20_000,
        max_bytes: int = 256 << 20,
    ) -> None:
        self.window_s = window_s
        self._clock = clock
        self._max_series = max_series
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._metrics: dict[str, dict[Tags, _Line]] = {}
        self._series = 0
        self._samples = 0
        self._packed_bytes = 0
        self._dropped = 0

    def extend(self, key: SeriesKey, times_us: Times, values: Floats) -> None:
        """Add samples to a series."""
        with self._lock:
            line = self._line(key)
            if line is None:
                self._dropped += len(times_us)
                return
            line.times_us.frombytes(np.ascontiguousarray(times_us, dtype=np.int64).tobytes())
            line.values.frombytes(np.ascontiguousarray(values, dtype=np.float64).tobytes())
            self._count(line, len(times_us))

    def add(self, metric: str, tags: Mapping[str, str], time_us: int, value: float) -> None:
        """Add one sample."""
        with self._lock:
            line = self._line(key_of(metric, tags))
            if line is None:
                self._dropped += 1
                return
            line.times_us.append(time_us)
            line.values.append(value)
            self._count(line, 1)

    def _count(self, line: _Line, added: int) -> None:
        self._samples += added
        if added and line.times_us[-1] >= line.newest_us:
            line.newest_us, line.newest_value = line.times_us[-1], line.values[-1]
        if len(line.times_us) >= BLOCK_SAMPLES:
            self._pack(line)

    def trim(self) -> None:
        """Let go of what is older than the window, and of more if the store is too large."""
        oldest_us = round((self._clock() - self.window_s) * _SECOND_US)
        with self._lock:
            for metric, lines in list(self._metrics.items()):
                for tags, line in list(lines.items()):
                    self._forget(line, oldest_us)
                    if not line.blocks and not line.times_us:
                        del lines[tags]
                        self._series -= 1
                if not lines:
                    del self._metrics[metric]
            if self._nbytes() > self._max_bytes:
                self._shrink()

    def read(
        self,
        metrics: Iterable[str],
        start_us: int,
        end_us: int,
        wanted: Callable[[Mapping[str, str]], bool] = lambda _: True,
    ) -> Iterator[TimeSeries]:
        """Yield the series of some metrics that have samples in a range of time, both ends included."""
        for metric in metrics:
            with self._lock:
                lines = list(self._metrics.get(metric, {}).items())
            for begin in range(0, len(lines), _READ_TOGETHER):
                some = lines[begin : begin + _READ_TOGETHER]
                chosen = [(named, line) for tags, line in some if wanted(named := dict(tags))]
                pieces = [self._pieces(line, start_us, end_us) for _, line in chosen]
                found = zip(chosen, assemble(pieces, start_us, end_us), strict=True)
                yield from (TimeSeries(metric, named, *samples) for (named, _), samples in found if len(samples[0]))

    def series_keys(self) -> list[SeriesKey]:
        """Return the keys of all series."""
        with self._lock:
            return [(metric, tags) for metric, lines in self._metrics.items() for tags in lines]

    def metrics(self) -> set[str]:
        """Return the names of the metrics that have samples."""
        with self._lock:
            return set(self._metrics)

    def newest(self) -> list[Newest]:
        """Return the newest sample of every series."""
        with self._lock:
            return [
                Newest(metric, dict(tags), line.newest_us, line.newest_value)
                for metric, lines in self._metrics.items()
                for tags, line in lines.items()
            ]

    def oldest_us(self) -> int | None:
        """Return the time of about the oldest sample, None where there are none."""
        with self._lock:
            lines = [line for lines in self._metrics.values() for line in lines.values()]
            packed = [block_span(line.blocks[0])[0] for line in lines if line.blocks]
            return min([*packed, *(line.times_us[0] for line in lines if line.times_us)], default=None)

    def size(self) -> StoreSize:
        """Return how much the store holds."""
        with self._lock:
            return StoreSize(self._series, self._samples, self._nbytes(), self._dropped)

    def room(self) -> int:
        """Return how many more series the store would take."""
        with self._lock:
            return self._max_series - self._series

    def _line(self, key: SeriesKey) -> _Line | None:
        metric, tags = key
        lines = self._metrics.get(metric)
        if lines is not None and tags in lines:
            return lines[tags]
        if self._series >= self._max_series:
            return None
        self._series += 1
        line = self._metrics.setdefault(metric, {})[tags] = _Line()
        return line

    def _pieces(self, line: _Line, start_us: int, end_us: int) -> list[Piece]:
        with self._lock:
            blocks = line.blocks.copy()
            newest = line.times_us.tobytes(), line.values.tobytes()
        return [*(_unpacked(block) for block in blocks if _overlaps(block, start_us, end_us)), newest]

    def _pack(self, line: _Line) -> None:
        times_us, values = np.array(line.times_us, dtype=np.int64), np.array(line.values, dtype=np.float64)
        if (np.diff(times_us) < 0).any():
            order = np.argsort(times_us, kind="stable")
            times_us, values = times_us[order], values[order]
        for begin in range(0, len(times_us), _LARGEST_BLOCK):
            end = begin + _LARGEST_BLOCK
            block = encode_block(times_us[begin:end], values[begin:end])
            line.blocks.append(block)
            self._packed_bytes += len(block) + BLOCK_OVERHEAD_BYTES
        line.times_us, line.values = array("q"), array("d")

    def _forget(self, line: _Line, oldest_us: int) -> int:
        forgotten = 0
        while line.blocks and block_span(line.blocks[0])[1] < oldest_us:
            block = line.blocks.pop(0)
            forgotten += block_span(block)[2]
            self._packed_bytes -= len(block) + BLOCK_OVERHEAD_BYTES
        if line.times_us and line.times_us[0] < oldest_us:
            kept = [(t, v) for t, v in zip(line.times_us, line.values, strict=True) if t >= oldest_us]
            forgotten += len(line.times_us) - len(kept)
            line.times_us, line.values = array("q", (t for t, _ in kept)), array("d", (v for _, v in kept))
        self._samples -= forgotten
        return forgotten

    def _shrink(self) -> None:
        lines = [line for lines in self._metrics.values() for line in lines.values()]
        blocks = [(block_span(block)[1], line) for line in lines for block in line.blocks]
        for last_us, line in sorted(blocks, key=lambda block: block[0]):
            if self._nbytes() <= self._max_bytes * _TRIM_TO:
                return
            self._dropped += self._forget(line, last_us + 1)

    def _nbytes(self) -> int:
        open_samples = sum(len(line.times_us) for lines in self._metrics.values() for line in lines.values())
        return self._packed_bytes + 16 * open_samples + SERIES_OVERHEAD_BYTES * self._series


def _overlaps(block: bytes, start_us: int, end_us: int) -> bool:
    first_us, last_us, _ = block_span(block)
    return last_us >= start_us and first_us <= end_us
