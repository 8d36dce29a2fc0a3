"""The samples of one node, in memory: a limited window of every series, compressed.

The newest samples of a series are plain arrays; once there are enough of them they are packed into a block
(:mod:`laggard.kvstore.series.timeseries`), and blocks are dropped one by one as the window moves on. Samples are not
State: they are lost with the process that holds them, unless they were dumped.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.timeseries import (
    BLOCK_OVERHEAD_BYTES,
    Floats,
    Piece,
    Times,
    TimeSeries,
    assembled,
    block_span,
    decode_block,
    encode_block,
)

Tags = tuple[tuple[str, str], ...]
"""Pairs of key and value, sorted by key."""
SeriesKey = tuple[str, Tags]
"""Metric and tags."""

BLOCK_SAMPLES = 128  # docs/benchmarks/telemetry.md: bytes for each sample
_LARGEST_BLOCK = 4096  # unpacked in less than a millisecond
# Blocks of a quick series are larger, which takes less time and room for each sample.
_BLOCK_US = 2_000_000
_SECOND_US = 1_000_000
_NEVER_US = 2**62
# A sample whose time is further ahead than this does not count when it is dropped: its clock is wrong.
_FUTURE_US = 3600 * _SECOND_US
# A series' object, its key and its two arrays, measured with tracemalloc.
SERIES_OVERHEAD_BYTES = 700
# A store that exceeds its limit shrinks to this fraction of it, so that it need not shrink again at once.
_TRIM_TO = 0.9


def key_of(metric: str, tags: Mapping[str, str]) -> SeriesKey:
    """Return the key of a series."""
    return metric, tuple(sorted(tags.items()))


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How much a store holds, and how many samples it refused or dropped early for lack of room."""

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


# Dashboards ask for the same blocks again and again. Usually half a megabyte, at most 16 MB.
@lru_cache(maxsize=256)
def _unpacked(block: bytes) -> Piece:
    times_us, values = decode_block(block)
    return times_us.tobytes(), values.tobytes()


class StoredSeries:
    """One series: packed blocks, followed by the samples that are not packed yet."""

    __slots__ = ("blocks", "late", "latest_us", "newest_us", "newest_value", "times_us", "values")

    def __init__(self) -> None:
        self.latest_us = -1
        self.late = 0  # how often samples came that were older than the latest one
        self.blocks: list[bytes] = []
        self.times_us = array("q")
        self.values = array("d")
        self.newest_us = -1
        self.newest_value = 0.0


class SampleStore:
    """A window of samples, for concurrent writers and readers."""

    def __init__(
        self,
        window_s: float,
        *,
        clock: Callable[[], float],
        max_series: int = 20_000,
        max_bytes: int = 256 << 20,
        observe: Callable[[SeriesKey, bytes, bytes], None] = lambda _key, _times, _values: None,
    ) -> None:
        self.window_s = window_s  # samples older than this by `clock` are dropped by trim
        self.complete_from_us = 0  # nothing of this time or later has been dropped; Unix time in microseconds
        # Called with all that is added, before anybody can read it: the key, and times and values as the memory of
        # arrays of 64-bit integers and floats
        self._observe = observe
        self._clock = clock  # returns Unix time in seconds
        self._max_series = max_series  # samples of further series are dropped and counted
        self._max_bytes = max_bytes  # beyond this the oldest samples are dropped early, and counted
        self._lock = threading.Lock()
        self._metrics: dict[str, dict[Tags, StoredSeries]] = {}
        self._series = 0
        self._samples = 0
        self._packed_bytes = 0
        self._dropped = 0

    def extend(self, key: SeriesKey, times_us: Times, values: Floats) -> None:
        """Add samples to a series."""
        times_us = np.ascontiguousarray(times_us, dtype=np.int64)
        oldest_us, latest_us = int(times_us.min(initial=_NEVER_US)), int(times_us.max(initial=-1))
        numbers = np.ascontiguousarray(values, dtype=np.float64).tobytes()
        self._append(key, times_us.tobytes(), numbers, oldest_us, latest_us)

    def add(self, metric: str, tags: Mapping[str, str], time_us: int, value: float) -> None:
        """Add one sample."""
        times, values = array("q", (time_us,)).tobytes(), array("d", (value,)).tobytes()
        self._append(key_of(metric, tags), times, values, time_us, time_us)

    def _append(self, key: SeriesKey, times: bytes, values: bytes, oldest_us: int, latest_us: int) -> None:
        with self._lock:
            stored = self._find_or_add(key)
            if stored is None:
                self._dropped += len(times) // 8
                return
            self._observe(key, times, values)
            stored.times_us.frombytes(times)
            stored.values.frombytes(values)
            stored.late += oldest_us < stored.latest_us
            stored.latest_us = max(stored.latest_us, latest_us)
            self._count(stored, len(times) // 8)

    def _count(self, stored: StoredSeries, added: int) -> None:
        self._samples += added
        if not added:
            return
        if stored.times_us[-1] >= stored.newest_us:
            stored.newest_us, stored.newest_value = stored.times_us[-1], stored.values[-1]
        waiting = len(stored.times_us)
        if waiting >= BLOCK_SAMPLES and (
            waiting >= _LARGEST_BLOCK or abs(stored.times_us[-1] - stored.times_us[0]) >= _BLOCK_US
        ):
            self._pack(stored)
            if self._packed_bytes > self._max_bytes:  # a store that is trimmed late must not grow meanwhile
                self._shrink()

    def trim(self) -> None:
        """Drop samples that are older than the window, and more if the store is too large."""
        oldest_us = round((self._clock() - self.window_s) * _SECOND_US)
        with self._lock:
            for metric, by_tags in list(self._metrics.items()):
                for tags, stored in list(by_tags.items()):
                    self._forget(stored, oldest_us)
                    if not stored.blocks and not stored.times_us:
                        del by_tags[tags]
                        self._series -= 1
                if not by_tags:
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
        """Yield the series of some metrics that have samples in a time range, both ends included."""
        for metric, tags, stored in self.matching(metrics, wanted):
            times_us, values = self.samples_of(stored, start_us, end_us)
            if len(times_us):
                yield TimeSeries(metric, tags, times_us, values)

    def matching(
        self, metrics: Iterable[str], wanted: Callable[[Mapping[str, str]], bool]
    ) -> Iterator[tuple[str, dict[str, str], StoredSeries]]:
        """Yield the series of some metrics, with their metric and tags."""
        for metric in metrics:
            with self._lock:
                pairs = list(self._metrics.get(metric, {}).items())
            for tags, stored in pairs:
                if wanted(named := dict(tags)):
                    yield metric, named, stored

    def samples_of(self, stored: StoredSeries, start_us: int, end_us: int) -> tuple[Times, Floats]:
        """Return the samples of a series in a time range, both ends included."""
        return self.samples_of_all([stored], start_us, end_us)[1:]

    def samples_of_all(
        self, several: Sequence[StoredSeries], start_us: int, end_us: int
    ) -> tuple[NDArray[np.intp], Times, Floats]:
        """Return the samples of several series one after the other, and the place of the series of each."""
        return assembled(self._pieces(several, start_us, end_us), start_us, end_us)

    def count(
        self, metrics: Iterable[str], start_us: int, end_us: int, wanted: Callable[[Mapping[str, str]], bool]
    ) -> int:
        """Return about how many samples :meth:`read` would yield, without reading them."""
        samples = 0
        for _, _, stored in self.matching(metrics, wanted):
            with self._lock:
                samples += len(stored.times_us) + sum(block_span(b)[2] for b in _blocks_of(stored, start_us, end_us))
        return samples

    def series_keys(self) -> list[SeriesKey]:
        """Return the keys of all series."""
        with self._lock:
            return [(metric, tags) for metric, by_tags in self._metrics.items() for tags in by_tags]

    def newest(self) -> list[Newest]:
        """Return the newest sample of every series."""
        with self._lock:
            return [
                Newest(metric, dict(tags), stored.newest_us, stored.newest_value)
                for metric, by_tags in self._metrics.items()
                for tags, stored in by_tags.items()
            ]

    def oldest_us(self) -> int | None:
        """Return the approximate time of the oldest sample, or None if there are none."""
        with self._lock:
            every = [stored for by_tags in self._metrics.values() for stored in by_tags.values()]
            packed = [block_span(stored.blocks[0])[0] for stored in every if stored.blocks]
            return min([*packed, *(stored.times_us[0] for stored in every if stored.times_us)], default=None)

    def size(self) -> StoreSize:
        """Return how much the store holds."""
        with self._lock:
            return StoreSize(self._series, self._samples, self._nbytes(), self._dropped)

    def _find_or_add(self, key: SeriesKey) -> StoredSeries | None:
        metric, tags = key
        by_tags = self._metrics.get(metric)
        if by_tags is not None and tags in by_tags:
            return by_tags[tags]
        if self._series >= self._max_series:
            return None
        self._series += 1
        stored = self._metrics.setdefault(metric, {})[tags] = StoredSeries()
        return stored

    def _pieces(self, several: Sequence[StoredSeries], start_us: int, end_us: int) -> list[list[Piece]]:
        with self._lock:
            blocks = [_blocks_of(stored, start_us, end_us) for stored in several]
            newest = [(stored.times_us.tobytes(), stored.values.tobytes()) for stored in several]
        return [[*map(_unpacked, packed), last] for packed, last in zip(blocks, newest, strict=True)]

    def _pack(self, stored: StoredSeries) -> None:
        times_us, values = np.array(stored.times_us, dtype=np.int64), np.array(stored.values, dtype=np.float64)
        if (np.diff(times_us) < 0).any():
            order = np.argsort(times_us, kind="stable")
            times_us, values = times_us[order], values[order]
        for begin in range(0, len(times_us), _LARGEST_BLOCK):
            end = begin + _LARGEST_BLOCK
            block = encode_block(times_us[begin:end], values[begin:end])
            stored.blocks.append(block)
            self._packed_bytes += len(block) + BLOCK_OVERHEAD_BYTES
        stored.times_us, stored.values = array("q"), array("d")

    def _forget(self, stored: StoredSeries, oldest_us: int) -> int:
        forgotten = 0
        while stored.blocks and block_span(stored.blocks[0])[1] < oldest_us:
            block = stored.blocks.pop(0)
            _, last_us, count = block_span(block)
            forgotten += count
            self._lacks_before(last_us + 1)
            self._packed_bytes -= len(block) + BLOCK_OVERHEAD_BYTES
        if stored.times_us and stored.times_us[0] < oldest_us:
            times_us, values = np.array(stored.times_us), np.array(stored.values)
            kept = times_us >= oldest_us
            forgotten += len(times_us) - int(kept.sum())
            self._lacks_before(oldest_us)
            stored.times_us, stored.values = array("q", times_us[kept].tobytes()), array("d", values[kept].tobytes())
        self._samples -= forgotten
        return forgotten

    def _lacks_before(self, time_us: int) -> None:
        latest_us = round(self._clock() * _SECOND_US) + _FUTURE_US
        self.complete_from_us = max(self.complete_from_us, min(time_us, latest_us))

    def _shrink(self) -> None:
        """Drop the oldest blocks; of the samples that are not packed, none."""
        every = [stored for by_tags in self._metrics.values() for stored in by_tags.values()]
        blocks = sorted((block_span(block)[1], at) for at, stored in enumerate(every) for block in stored.blocks)
        excess = self._nbytes() - round(self._max_bytes * _TRIM_TO)
        for last_us, at in blocks:
            if excess <= 0:
                return
            before = self._packed_bytes
            self._dropped += self._forget(every[at], last_us + 1)
            excess -= before - self._packed_bytes

    def _nbytes(self) -> int:
        open_samples = sum(len(stored.times_us) for by_tags in self._metrics.values() for stored in by_tags.values())
        return self._packed_bytes + 16 * open_samples + SERIES_OVERHEAD_BYTES * self._series


def _blocks_of(stored: StoredSeries, start_us: int, end_us: int) -> list[bytes]:
    """Return the blocks of a series that overlap a time range, in their order."""
    found = []
    for block in reversed(stored.blocks):
        first_us, last_us, _ = block_span(block)
        if last_us < start_us and not stored.late:
            break  # those before it are older
        if last_us >= start_us and first_us <= end_us:
            found.append(block)
    return found[::-1]
