"""One tier: the summaries of all series in buckets of one width, the newest as tables, the others packed.

A batch is packed at once, with a chunk for each metric, and dropped at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laggard.telemetry.store.chunks import Chunk, pack_rows
from laggard.telemetry.store.summaries import COLUMNS, Summaries, concatenated, merged, n_rows, where

ROW_BYTES = 64
# A sample whose time is further ahead than this does not count when it is dropped: its clock is wrong.
FUTURE_US = 3600 * 1_000_000
# A reader looks at each table: there are no more than if each had this many rows.
TABLE_ROWS = 512
# Of a chunk whose columns are kept unpacked.
MAX_KEPT_ROWS = 4096


@dataclass(frozen=True, slots=True)
class View:
    """What a tier has at one moment of some metrics and a time range; none of it changes any more."""

    chunks: Sequence[Chunk]
    tables: Sequence[Summaries]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The chunks that were packed together: by metric, their end, and from when on they may be dropped."""

    chunks: dict[int, Chunk]
    end_us: int
    nbytes: int


class Tier:
    """Summaries of one width. Its methods are called under one lock; packing is done outside it, in two steps."""

    def __init__(self, width_us: int, batch_rows: int) -> None:
        self.width_us = width_us  # width of the buckets
        self.complete_from_us = 0
        self.packed_bytes = 0
        self._batch_rows = batch_rows  # how many rows are packed together
        self._batches: deque[_Batch] = deque()
        self._tables: list[Summaries] = []
        self._n_open = 0

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.packed_bytes + ROW_BYTES * self._n_open

    @property
    def is_due(self) -> bool:
        """Whether the tables should be merged or packed."""
        return self._n_open >= self._batch_rows or len(self._tables) >= max(2, self._batch_rows // TABLE_ROWS)

    @property
    def tables(self) -> list[Summaries]:
        """The tables so far."""
        return self._tables.copy()

    def add(self, rows: Summaries) -> None:
        """Add rows; the arrays must not change afterwards."""
        if n_rows(rows):
            self._tables.append(rows)
            self._n_open += n_rows(rows)

    def merged(self, tables: Sequence[Summaries]) -> Summaries:
        """Return the rows of some tables, with one for each series and bucket."""
        return merged(concatenated(tables), self.width_us)

    def packed(self, rows: Summaries, metric_of: NDArray[np.int64], now_us: int) -> _Batch | None:
        """Return merged rows as a batch; None if they are too few. ``metric_of`` are the metrics of all series."""
        if n_rows(rows) < self._batch_rows // 2:
            return None
        metrics = metric_of[rows["series"]]
        order = np.argsort(metrics, kind="stable")
        begins = np.flatnonzero(np.diff(metrics[order], prepend=-1))
        places = np.split(order, begins[1:])
        chunks = {int(metrics[at[0]]): pack_rows(where(rows, at), self.width_us) for at in places}
        end_us = min(now_us + FUTURE_US, max(chunk.end_us for chunk in chunks.values()))
        return _Batch(chunks, end_us, sum(chunk.nbytes for chunk in chunks.values()))

    def replace(self, n_tables: int, rows: Summaries, batch: _Batch | None) -> None:
        """Put a batch, or the merged rows, in the place of the first tables."""
        self._tables = self._tables[n_tables:] if batch is not None else [rows, *self._tables[n_tables:]]
        self._n_open = sum(map(n_rows, self._tables))
        if batch is not None:
            self._batches.append(batch)
            self.packed_bytes += batch.nbytes

    def view(self, metrics: Collection[int], begin_us: int, end_us: int) -> View:
        """Return what there is of some metrics in a time range."""
        found = (batch.chunks.get(metric) for batch in self._batches for metric in metrics)
        chunks = [chunk for chunk in found if chunk and chunk.end_us > begin_us and chunk.first_us < end_us]
        return View(chunks, self._tables.copy())

    def span_us(self) -> tuple[int, int] | None:
        """Return the start of the first bucket and the end of the last one; None if there are none."""
        spans = [(chunk.first_us, chunk.end_us) for batch in self._batches for chunk in batch.chunks.values()]
        spans += [(int(t["start_us"].min()), int(t["start_us"].max()) + self.width_us) for t in self._tables]
        return (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else None

    def drop_before(self, oldest_us: int) -> None:
        """Drop batches that are older than a time."""
        while self._batches and self._batches[0].end_us <= oldest_us:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Drop the oldest batch; return whether there was one."""
        if not self._batches:
            return False
        batch = self._batches.popleft()
        self.packed_bytes -= batch.nbytes
        self.complete_from_us = max(self.complete_from_us, batch.end_us)
        return True


def rows_of(view: View, places: NDArray[np.int64], columns: Sequence[str]) -> list[Summaries]:
    """Return the rows of chosen series, whose numbers are replaced by their places; -1: the series is not chosen."""
    chunks = [_unpacked(chunk, tuple(columns)) for chunk in view.chunks if (places[chunk.series()] >= 0).any()]
    # Many small tables take longer one by one.
    return [_chosen(rows, places) for rows in (*chunks, concatenated(view.tables, columns))]


def _unpacked(chunk: Chunk, columns: tuple[str, ...]) -> Summaries:
    is_kept = chunk.n_rows <= MAX_KEPT_ROWS and len(columns) < len(COLUMNS)  # a dump asks for all columns, once
    return _kept(chunk, columns) if is_kept else chunk.unpack(columns)


# Dashboards ask for the same columns again and again. At most 10 MB; whoever is given the arrays only copies from them.
@lru_cache(maxsize=64)
def _kept(chunk: Chunk, columns: tuple[str, ...]) -> Summaries:
    return chunk.unpack(columns)


def _chosen(rows: Summaries, places: NDArray[np.int64]) -> Summaries:
    series = places[rows["series"]]
    return where({**rows, "series": series}, np.flatnonzero(series >= 0))
