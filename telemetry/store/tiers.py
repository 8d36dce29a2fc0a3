"""All tiers of one node, or of all nodes on the primary: summaries of a second, ten seconds and a minute.

What arrives is kept as samples for a moment, then added to all tiers at once. A reader sees each sample once, whether
that has happened yet or not.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.sample_store import SeriesKey
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.planning import Origin, Segment
from laggard.telemetry.store.summaries import Summaries, concatenated, empty, merged, of_samples, where
from laggard.telemetry.store.tier import Tier, rows_of

SECOND_TIER_US, TEN_SECONDS_US, MINUTE_US = SECOND_US, 10 * SECOND_US, 60 * SECOND_US
DAY_S = 86_400.0
WINDOWS_S = {SECOND_TIER_US: 3_600.0, TEN_SECONDS_US: DAY_S, MINUTE_US: 30 * DAY_S}
"""For how long a node keeps the summaries of each tier; the primary keeps the last two of all nodes as long."""
BATCH_ROWS = 32_768
MAX_SERIES = 40_000
FOLD_SAMPLES, MAX_ARRIVED = 100_000, 1_000_000
# A series' key and its tags, as a mapping, with their place in the tables.
SERIES_BYTES = 600
# Coarse tiers reach further back, so the finest of those that take more than this share of the room is cut first.
_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Known:
    """A series: its number, where it comes from, and its key."""

    number: int
    source: str
    key: SeriesKey
    tags: Mapping[str, str]


_Waiting = dict[int, tuple["array[int]", "array[float]"]]
"""Samples that are in no tier yet: times and values by the number of their series."""
_Series = tuple[int, tuple["array[int]", "array[float]"]]
_Samples = tuple[NDArray[np.int64], Times, Floats]


class Tiers:
    """Tiers of summaries, for concurrent writers and readers."""

    def __init__(
        self,
        windows_s: Mapping[int, float],
        *,
        max_bytes: int,
        clock: Callable[[], float],
        max_series: int = MAX_SERIES,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self.dropped = 0
        # For how long each tier is kept, by the width of its buckets in microseconds; each width is a multiple of the
        # one before it
        self._windows_s = dict(sorted(windows_s.items()))
        # Limit for all tiers together; beyond it the oldest summaries of fine tiers are dropped first
        self._max_bytes = max_bytes
        self._clock = clock  # returns Unix time in seconds
        self._max_series = max_series  # samples of further series are not in the tiers
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._tiers = {width_us: Tier(width_us, batch_rows) for width_us in self._windows_s}
        self._arrivals: _Waiting = {}
        self._folding: _Waiting = {}
        self._n_arrived = 0
        self._folded_rows: list[Summaries] = []  # that no call of fold has returned
        self._numbers: dict[tuple[str, SeriesKey], int] = {}
        self._known: list[Known] = []
        self._metrics: dict[str, int] = {}
        self._by_metric: list[list[Known]] = []
        self._metric_of = array("q")

    def add(self, key: SeriesKey, times: bytes, values: bytes) -> None:
        """Add samples: times and values as the memory of arrays of 64-bit integers and floats."""
        with self._lock:
            number = self._number(key, "")
            if number is None:
                self.dropped += len(times) // 8
                return
            times_us, numbers = self._arrivals.setdefault(number, (array("q"), array("d")))
            times_us.frombytes(times)
            numbers.frombytes(values)
            self._n_arrived += len(times) // 8

    def fold(self) -> Summaries:
        """Add what has arrived to all tiers, and return what was added since the last call, as rows of the finest."""
        with self._writing:
            self._fold()
            folded, self._folded_rows = self._folded_rows, []
        return concatenated(folded)

    def relieve(self) -> None:
        """Add what has arrived to all tiers if it is much: who brings samples waits, where :meth:`fold` comes late."""
        if self._n_arrived > MAX_ARRIVED:
            with self._writing:
                if self._n_arrived > MAX_ARRIVED:
                    self._fold()

    def _fold(self) -> None:
        with self._lock:
            self._folding, self._arrivals, self._n_arrived = self._arrivals, {}, 0
        finest_us = min(self._tiers)
        parts = [merged(of_samples(*_samples(some)), finest_us) for some in _parts(sorted(self._folding.items()))]
        tables = self._folded(concatenated(parts))
        with self._lock:
            self._folding = {}
            for width_us, rows in tables.items():
                self._tiers[width_us].add(rows)
        self._pack()
        self._folded_rows.append(tables[finest_us])

    def add_rows(self, rows: Summaries, width_us: int) -> None:
        """Add rows of a width to the tier of this width and to all coarser ones; the series are numbers of ours."""
        with self._writing:
            tables = {width: table for width, table in self._folded(rows).items() if width >= width_us}
            with self._lock:
                for width, table in tables.items():
                    self._tiers[width].add(table)
            self._pack()

    def begin(self, width_us: int, time_us: int) -> None:
        """Say that a tier lacks something before a time."""
        with self._lock:
            tier = self._tiers[width_us]
            tier.complete_from_us = max(tier.complete_from_us, time_us)

    def trim(self) -> None:
        """Drop what is older than its tier's window, and more if all tiers together are too large."""
        now_us = round(self._clock() * SECOND_US)
        with self._writing, self._lock:
            for width_us, window_s in self._windows_s.items():
                self._tiers[width_us].drop_before(now_us - round(window_s * SECOND_US))
            tiers = list(self._tiers.values())
            while sum(tier.nbytes for tier in tiers) > self._max_bytes:
                large = [tier for tier in tiers if tier.packed_bytes > _SHARE * self._max_bytes]
                if not any(tier.drop_oldest() for tier in [*large, *tiers]):
                    break

    def number_of(self, key: SeriesKey, source: str = "") -> int | None:
        """Return the number of a series, which is new if need be; None if there are too many."""
        with self._lock:
            return self._number(key, source)

    def known(self, metrics: Collection[str] | None = None) -> list[Known]:
        """Return all series, or those of some metrics."""
        with self._lock:
            if metrics is None:
                return self._known.copy()
            places = [self._metrics[name] for name in metrics if name in self._metrics]
            return [each for place in places for each in self._by_metric[place]]

    def origins(self) -> list[Origin]:
        """Return the tiers as sources of a plan, the finest first."""
        with self._lock:
            return [Origin(width_us, tier.complete_from_us) for width_us, tier in self._tiers.items()]

    def nbytes(self) -> int:
        """Return the memory of the tiers in bytes."""
        with self._lock:
            return sum(tier.nbytes for tier in self._tiers.values()) + SERIES_BYTES * len(self._known)

    def read(self, segments: Sequence[Segment], chosen: Mapping[int, int], columns: Sequence[str]) -> Summaries:
        """Return the rows of chosen series in some segments, all as of one moment."""
        if not chosen:
            return empty(columns)
        with self._lock:
            metrics = sorted({self._metric_of[number] for number in chosen})
            places = np.full(len(self._known), -1, dtype=np.int64)
            views = [self._tiers[s.width_us].view(metrics, _first_us(s), s.end_us) for s in segments]
            both = self._folding, self._arrivals
            waiting = _samples([(place, e[number]) for number, place in chosen.items() for e in both if number in e])
        places[list(chosen)] = list(chosen.values())
        samples = {name: column for name, column in of_samples(*waiting).items() if name in columns}
        found = []
        for segment, view in reversed(list(zip(segments, views, strict=True))):  # the oldest first
            recent = merged(_within(segment, samples), segment.width_us)
            found += [_within(segment, concatenated(rows_of(view, places, columns), columns)), recent]
        return concatenated(found, columns)

    def span_us(self) -> tuple[int, int] | None:
        """Return the start of the first bucket and the end of the last one, as far as they are in the tiers."""
        with self._lock:
            spans = [span for tier in self._tiers.values() if (span := tier.span_us()) is not None]
        return (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else None

    def _number(self, key: SeriesKey, source: str) -> int | None:
        number = self._numbers.get((source, key))
        if number is not None or len(self._known) >= self._max_series:
            return number
        metric, tags = key
        place = self._metrics.setdefault(metric, len(self._metrics))
        if place == len(self._by_metric):
            self._by_metric.append([])
        new = Known(len(self._known), source, key, dict(tags))
        self._numbers[source, key] = new.number
        self._known.append(new)
        self._by_metric[place].append(new)
        self._metric_of.append(place)
        return new.number

    def _folded(self, rows: Summaries) -> dict[int, Summaries]:
        tables = {}
        for width_us in self._tiers:  # each from the one before it
            tables[width_us] = rows = merged(rows, width_us)
        return tables

    def _pack(self) -> None:
        """Merge or pack the tables of the tiers that have many; the readers wait for the exchange only."""
        now_us = round(self._clock() * SECOND_US)
        for tier in self._tiers.values():
            with self._lock:
                if not tier.is_due:
                    continue
                tables, metric_of = tier.tables, np.array(self._metric_of, dtype=np.int64)
            rows = tier.merged(tables)
            batch = tier.packed(rows, metric_of, now_us)
            with self._lock:
                tier.replace(len(tables), rows, batch)


def _first_us(segment: Segment) -> int:
    """Return the start of the bucket in which a segment begins."""
    return segment.begin_us - segment.begin_us % segment.width_us


def _parts(series: Sequence[_Series]) -> Iterator[list[_Series]]:
    """Yield the series a few at a time, since summaries of single samples take eight times the samples' own room."""
    some: list[_Series] = []
    n_samples = 0
    for each in series:
        some.append(each)
        n_samples += len(each[1][0])
        if n_samples >= FOLD_SAMPLES:
            yield some
            some, n_samples = [], 0
    if some:
        yield some


def _samples(series: Sequence[_Series]) -> _Samples:
    """Return a copy of some series, each with its number: the series, time and value of each sample."""
    counts = [len(times_us) for _, (times_us, _) in series]
    return (
        np.repeat(np.array([number for number, _ in series], dtype=np.int64), counts),
        np.frombuffer(b"".join([times_us for _, (times_us, _) in series]), dtype=np.int64),
        np.frombuffer(b"".join([values for _, (_, values) in series]), dtype=np.float64),
    )


def _within(segment: Segment, rows: Summaries) -> Summaries:
    """Return those of some samples, or of some rows of a segment's width, that are in a bucket of the segment."""
    starts, width_us = rows["start_us"], segment.width_us
    kept = (starts >= _first_us(segment)) & (starts < -(-segment.end_us // width_us) * width_us)
    return rows if kept.all() else where(rows, kept)
