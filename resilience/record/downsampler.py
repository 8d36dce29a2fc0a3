"""Samples of a whole job in a bounded number of time bins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.kvstore.series.timeseries import Floats, Times, TimeSeries

_SECOND_US = 1_000_000
# What a bin holds before its first sample.
_NOTHING: Mapping[np.ufunc, float] = {np.add: 0.0, np.minimum: np.inf, np.maximum: -np.inf}


class Downsampler:
    """The mean of each series in each of at most ``n_bins`` time bins.

    When the bins are used up, neighbours are merged and each bin is twice as wide from then on. So the size does not
    depend on how long a job runs, and the mean of a bin is the mean of all samples in it.
    """

    def __init__(self, start_us: int, *, bin_s: float = 1.0, n_bins: int = 300, max_series: int = 12_000) -> None:
        self.bin_us = round(bin_s * _SECOND_US)
        self._start_us = start_us  # start of the first bin, as Unix time in microseconds; older samples are dropped
        self._n_bins = n_bins  # an even number
        self._max_series = max_series  # samples of further series are dropped
        self._series: dict[SeriesKey, tuple[np.ufunc, NDArray[np.float32], NDArray[np.float32]]] = {}

    def add(
        self, metric: str, tags: Mapping[str, str], times_us: Times, values: Floats, fold: np.ufunc = np.add
    ) -> None:
        """Add samples of a series; those that are not finite are dropped."""
        # `fold` is always the same for a series: `np.add` for the means, `np.minimum` or `np.maximum` for these.
        good = np.isfinite(values) & (times_us >= self._start_us)
        times_us, values = times_us[good], values[good]
        if not len(times_us):
            return
        while (times_us.max() - self._start_us) // self.bin_us >= self._n_bins:
            self._widen()
        key = key_of(metric, tags)
        if key not in self._series:
            if len(self._series) >= self._max_series:
                return
            nothing = np.full(self._n_bins, _NOTHING[fold], np.float32)
            self._series[key] = fold, nothing, np.zeros(self._n_bins, np.float32)
        _, folded, count = self._series[key]
        bins = (times_us - self._start_us) // self.bin_us
        with np.errstate(over="ignore"):  # such values are not finite afterwards, and nothing shows them
            fold.at(folded, bins, values)
        np.add.at(count, bins, 1)

    def series_keys(self) -> Collection[SeriesKey]:
        """Return the keys of all series."""
        return self._series.keys()

    def series(self) -> Iterator[TimeSeries]:
        """Yield each series: the means (or extremes), each at the middle of its bin."""
        middles = self._start_us + self.bin_us * np.arange(self._n_bins, dtype=np.int64) + self.bin_us // 2
        for (metric, tags), (fold, folded, count) in self._series.items():
            used = count > 0
            values = folded[used] / count[used] if fold is np.add else folded[used]
            yield TimeSeries(metric, dict(tags), middles[used], values.astype(np.float64))

    def _widen(self) -> None:
        self.bin_us *= 2
        for fold, folded, count in self._series.values():
            for array, how in ((folded, fold), (count, np.add)):
                half = how.reduce(array.reshape(-1, 2), axis=1)
                array[: len(half)] = half
                array[len(half) :] = _NOTHING[how]
