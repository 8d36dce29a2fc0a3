"""Values of buckets that were computed from samples, and are kept, since dashboards ask for the same ones again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.kvstore.series.sample_store import SampleStore, SeriesKey, StoredSeries
from laggard.kvstore.series.timeseries import Floats, Times, TimeSeries, within
from laggard.telemetry.query.downsampling import reduce_runs

# Of all series together, and of one: sixteen bytes each.
MAX_KEPT, MAX_KEPT_OF_ONE = 500_000, 2_000
_Name = tuple[SeriesKey, str, int]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The buckets of a series in a time range: their starts and values, and how many late samples it had had."""

    begin_us: int
    end_us: int
    late: int
    starts_us: Times
    values: Floats


class Reductions:
    """Buckets of the series of one store, for concurrent readers."""

    def __init__(self, samples: SampleStore, max_kept: int = MAX_KEPT) -> None:
        self._samples = samples
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Name, _Kept] = OrderedDict()  # the one used last at the end
        self._n_kept = 0

    def read(
        self,
        metrics: Sequence[str],
        how: tuple[str, int],
        begin_us: int,
        end_us: int,
        wanted: Callable[[Mapping[str, str]], bool],
    ) -> Iterator[TimeSeries]:
        """Yield series with a value for each bucket; ``how``: the function and the width of the buckets."""
        shared = np.empty(0, dtype=np.int64)
        for metric, tags, stored in self._samples.matching(metrics, wanted):
            starts_us, values = self._of_one(((metric, tuple(tags.items())), *how), stored, begin_us, end_us)
            if not np.array_equal(starts_us, shared):  # as History does
                shared = starts_us
            if len(starts_us):
                yield TimeSeries(metric, tags, shared, values)

    @np.errstate(over="ignore", invalid="ignore")
    def _of_one(self, name: _Name, stored: StoredSeries, begin_us: int, end_us: int) -> tuple[Times, Floats]:
        _, function, step_us = name
        late, latest_us = stored.late, stored.latest_us  # before anything is read: what comes meanwhile is not kept
        kept = self._kept.get(name)
        if kept is None or kept.late != late or not kept.begin_us <= begin_us <= kept.end_us:
            kept = _Kept(begin_us, begin_us, late, np.empty(0, dtype=np.int64), np.empty(0))
        times_us, values = self._samples.samples_of(stored, kept.end_us, end_us - 1)
        starts_us = times_us - times_us % step_us
        begins = np.flatnonzero(np.diff(starts_us, prepend=-1))
        starts_us = np.concatenate([kept.starts_us, starts_us[begins]])
        new = reduce_runs(function, values, begins) if len(begins) else values
        values = np.concatenate([kept.values, new])
        # A bucket does not change any more when there is a sample after it, unless late ones come.
        final_us = max(kept.end_us, min(latest_us, end_us) // step_us * step_us)
        n_final = int(starts_us.searchsorted(final_us))
        first = max(0, n_final - MAX_KEPT_OF_ONE)
        first_us = int(starts_us[first]) if first else kept.begin_us
        self._keep(name, _Kept(first_us, final_us, late, starts_us[first:n_final], values[first:n_final]))
        chosen = within(starts_us, begin_us, end_us - 1)
        return starts_us[chosen], values[chosen]

    def _keep(self, name: _Name, kept: _Kept) -> None:
        with self._lock:
            before = self._kept.pop(name, None)
            self._n_kept += len(kept.values) - (0 if before is None else len(before.values))
            self._kept[name] = kept
            while self._n_kept > self._max_kept:
                self._n_kept -= len(self._kept.popitem(last=False)[1].values)
