"""Values of buckets that were computed from samples, and are kept, since dashboards ask for the same ones again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from laggard.kvstore.series.sample_store import SampleStore, SeriesKey, StoredSeries
from laggard.kvstore.series.timeseries import Floats, Times, TimeSeries, within
from laggard.telemetry.query.downsampling import reduce_runs
from laggard.telemetry.query.times import SECOND_US

# Of all series together, and of one: sixteen bytes each.
MAX_KEPT, MAX_KEPT_OF_ONE = 500_000, 2_000
# For how long a time of one series, or of how many in proportion, samples are read at once.
TOGETHER_US = 60 * SECOND_US
_Name = tuple[SeriesKey, str, int]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The buckets of a series in a time range: their starts and values, and how many late samples it had had."""

    begin_us: int
    end_us: int
    late: int
    latest_us: int  # the time of its latest sample
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
        found = list(self._samples.matching(metrics, wanted))
        names = [((metric, tuple(tags.items())), *how) for metric, tags, _ in found]
        kept = [self._kept_of(name, stored, begin_us) for name, (_, _, stored) in zip(names, found, strict=True)]
        # Many series with little that is new are quicker together; of much, each takes its room by itself. The last bit
        # of a deviation depends on what else is computed with it.
        longest_us = end_us - min([each.end_us for each in kept], default=0)
        at_once = 1 if how[0] == "dev" else max(1, TOGETHER_US // max(1, longest_us))
        shared = np.empty(0, dtype=np.int64)
        for first in range(0, len(found), at_once):
            some = slice(first, first + at_once)
            buckets = self._extended(names[some], kept[some], [stored for _, _, stored in found[some]], end_us)
            for (metric, tags, _), (starts_us, values) in zip(found[some], buckets, strict=True):
                chosen = within(starts_us, begin_us, end_us - 1)
                if not np.array_equal(starts_us[chosen], shared):  # as History does
                    shared = starts_us[chosen]
                if len(shared):
                    yield TimeSeries(metric, tags, shared, values[chosen])

    def _kept_of(self, name: _Name, stored: StoredSeries, begin_us: int) -> _Kept:
        """Return what is kept of a series, and nothing if that is of no use."""
        late, latest_us = stored.late, stored.latest_us  # before anything is read: what comes meanwhile is not kept
        kept = self._kept.get(name)
        if kept is None or kept.late != late or not kept.begin_us <= begin_us <= kept.end_us:
            return _Kept(begin_us, begin_us, late, latest_us, np.empty(0, dtype=np.int64), np.empty(0))
        return replace(kept, latest_us=latest_us)

    @np.errstate(over="ignore", invalid="ignore")
    def _extended(
        self, names: Sequence[_Name], kept: Sequence[_Kept], several: Sequence[StoredSeries], end_us: int
    ) -> list[tuple[Times, Floats]]:
        """Return the buckets of some series: those that are kept, and those that follow."""
        _, function, step_us = names[0]
        from_us = np.array([each.end_us for each in kept])
        at, times_us, values = self._samples.samples_of_all(several, int(from_us.min()), end_us - 1)
        if (is_early := times_us < from_us[at]).any():
            at, times_us, values = at[~is_early], times_us[~is_early], values[~is_early]
        starts_us = times_us - times_us % step_us
        begins = np.flatnonzero((np.diff(starts_us, prepend=-1) != 0) | (np.diff(at, prepend=-1) != 0))
        new = reduce_runs(function, values, begins) if len(begins) else values
        bounds = at[begins].searchsorted(np.arange(len(several) + 1)).tolist()
        starts_us = starts_us[begins]
        return [
            self._joined(name, before, starts_us[begin:end], new[begin:end], end_us)
            for name, before, (begin, end) in zip(names, kept, pairwise(bounds), strict=True)
        ]

    def _joined(self, name: _Name, kept: _Kept, starts_us: Times, values: Floats, end_us: int) -> tuple[Times, Floats]:
        starts_us, values = np.concatenate([kept.starts_us, starts_us]), np.concatenate([kept.values, values])
        # A bucket does not change any more when there is a sample after it, unless late ones come.
        step_us = name[2]
        final_us = max(kept.end_us, min(kept.latest_us, end_us) // step_us * step_us)
        n_final = int(starts_us.searchsorted(final_us))
        first = max(0, n_final - MAX_KEPT_OF_ONE)
        first_us = int(starts_us[first]) if first else kept.begin_us
        final = slice(first, n_final)
        self._keep(name, _Kept(first_us, final_us, kept.late, kept.latest_us, starts_us[final], values[final]))
        return starts_us, values

    def _keep(self, name: _Name, kept: _Kept) -> None:
        with self._lock:
            before = self._kept.pop(name, None)
            self._n_kept += len(kept.values) - (0 if before is None else len(before.values))
            self._kept[name] = kept
            while self._n_kept > self._max_kept:
                self._n_kept -= len(self._kept.popitem(last=False)[1].values)
