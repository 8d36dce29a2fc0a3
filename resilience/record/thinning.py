"""A job's series at a bounded size: as the job grows longer, time is cut into wider pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kvstore.store import SeriesKey, key_of
from kvstore.timeseries import Floats, Times, TimeSeries

__all__ = ["Thinned"]

_SECOND_US = 1_000_000


class Thinned:
    """The mean of each series in each of at most ``n_pieces`` pieces of time.

    Whenever they are used up, neighbours are put together and each piece is twice as long from then on: the size does
    not depend on how long a job runs, and the mean over a piece is that of all samples in it.

    Parameters
    ----------
    start_us
        When the first piece begins, as Unix time in microseconds; what is older is left out.
    piece_s
        Length of a piece at first, in seconds.
    n_pieces
        An even number.
    max_series
        Samples of further series are left out.
    """

    def __init__(self, start_us: int, *, piece_s: float = 1.0, n_pieces: int = 300, max_series: int = 12_000) -> None:
        if n_pieces % 2 or n_pieces <= 0:
            raise ValueError(f"n_pieces is {n_pieces}: it must be even and above 0")
        self.piece_us = round(piece_s * _SECOND_US)
        self._start_us = start_us
        self._n_pieces = n_pieces
        self._max_series = max_series
        self._series: dict[SeriesKey, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}

    def add(self, metric: str, tags: Mapping[str, str], times_us: Times, values: Floats) -> None:
        """Add samples of a series; those that are not finite are left out."""
        good = np.isfinite(values) & (times_us >= self._start_us)
        times_us, values = times_us[good], values[good]
        if not len(times_us):
            return
        while (times_us.max() - self._start_us) // self.piece_us >= self._n_pieces:
            self._widen()
        key = key_of(metric, tags)
        if key not in self._series:
            if len(self._series) >= self._max_series:
                return
            self._series[key] = np.zeros(self._n_pieces, np.float32), np.zeros(self._n_pieces, np.float32)
        total, count = self._series[key]
        piece = (times_us - self._start_us) // self.piece_us
        np.add.at(total, piece, values)
        np.add.at(count, piece, 1)

    def series(self) -> Iterator[TimeSeries]:
        """Yield each series: the means, at the middles of their pieces."""
        middles = self._start_us + self.piece_us * np.arange(self._n_pieces, dtype=np.int64) + self.piece_us // 2
        for (metric, tags), (total, count) in self._series.items():
            there = count > 0
            yield TimeSeries(metric, dict(tags), middles[there], (total[there] / count[there]).astype(np.float64))

    def _widen(self) -> None:
        self.piece_us *= 2
        for sums in self._series.values():
            for array in sums:
                half = array.reshape(-1, 2).sum(axis=1)
                array[: len(half)] = half
                array[len(half) :] = 0
