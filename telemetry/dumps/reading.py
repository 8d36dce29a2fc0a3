"""Reading dumps, of any number of nodes and times, into one history.

Dumps may overlap. Samples that several dumps have count once. Where one dump has summaries of a series and another its
samples, or finer summaries, each minute is taken from one of them: the one that has seen most samples in it, and of
these the finest; and from another one, if that is all of an earlier or later time, as when a process was started anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.sample_store import SampleStore, SeriesKey
from laggard.system.memory import memory_limit_bytes
from laggard.telemetry.dumps.lines import LATEST_S, Lines
from laggard.telemetry.dumps.writing import SUFFIX
from laggard.telemetry.errors import DumpError
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.history import History
from laggard.telemetry.store.planning import SAMPLES
from laggard.telemetry.store.summaries import COLUMNS as ROW_COLUMNS
from laggard.telemetry.store.summaries import Summaries, n_rows, of_samples, where
from laggard.telemetry.store.tiers import MINUTE_US, SECOND_TIER_US, TEN_SECONDS_US, Tiers

WIDTHS_US = (SECOND_TIER_US, TEN_SECONDS_US, MINUTE_US)
_FOLD_SAMPLES = 2_000_000


def read_dump(paths: Sequence[Path], memory_bytes: int | None = None) -> History:
    """Read dumps into one history, with half of this memory at most; None: of what there is."""
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    if not files:
        raise DumpError(", ".join(map(str, paths)), f"there is no dump (*{SUFFIX}) here")
    found = Lines(memory_limit_bytes() if memory_bytes is None else memory_bytes)
    for place, file in enumerate(files):
        found.read(place, file)
    return _history(found)


@dataclass(slots=True)
class _Read:
    """Rows, the file that each comes from, and the width of its bucket."""

    rows: Summaries
    files: NDArray[np.int64]
    widths_us: NDArray[np.int64]

    def minutes(self) -> NDArray[np.int64]:
        return self.rows["start_us"] // MINUTE_US

    def kept(self, mask: NDArray[np.bool_]) -> _Read:
        return _Read(where(self.rows, mask), self.files[mask], self.widths_us[mask])


def _history(found: Lines) -> History:
    samples, summaries = _samples_of(found), _summaries_of(found)
    if n_rows(summaries.rows):
        samples, summaries = _disentangled(samples, summaries)
    # Of the series of lost nodes there is nothing finer than ten seconds: others must not be shown like that too.
    finest_us = np.full(len(found.names), MINUTE_US, dtype=np.int64)
    for part in (samples, summaries):
        np.minimum.at(finest_us, part.rows["series"], part.widths_us)
    is_coarse = finest_us >= TEN_SECONDS_US
    keys = found.keys()
    coarse = _filled(keys, samples, summaries, is_coarse) if is_coarse.any() else None
    return _filled(keys, samples, summaries, ~is_coarse, coarse)


def _filled(
    keys: Sequence[SeriesKey],
    samples: _Read,
    summaries: _Read,
    chosen: NDArray[np.bool_],
    beside: History | None = None,
) -> History:
    """Return a history of the chosen series."""
    samples, summaries = (part.kept(chosen[part.rows["series"]]) for part in (samples, summaries))
    windows_s = dict.fromkeys(WIDTHS_US, LATEST_S)
    tiers = Tiers(windows_s, max_bytes=1 << 62, clock=lambda: LATEST_S, max_series=1 << 40)
    store = SampleStore(LATEST_S, clock=lambda: LATEST_S, max_series=10**9, max_bytes=1 << 62, observe=tiers.add)
    _store(store, tiers, keys, samples.rows)
    used = np.unique(summaries.rows["series"]).tolist()
    numbers = np.zeros(len(keys), dtype=np.int64)
    numbers[used] = [tiers.number_of(keys[number]) or 0 for number in used]
    for width_us in WIDTHS_US:
        rows = where(summaries.rows, summaries.widths_us == width_us)
        if n_rows(rows):
            tiers.add_rows({**rows, "series": numbers[rows["series"]]}, width_us)
            end_us = int(rows["start_us"].max()) + width_us
            store.complete_from_us = max(store.complete_from_us, end_us)
            for finer_us in (each for each in WIDTHS_US if each < width_us):
                tiers.begin(finer_us, end_us)
    return History(tiers, store, beside)


def _store(store: SampleStore, tiers: Tiers, keys: Sequence[SeriesKey], rows: Summaries) -> None:
    """Store samples; those that are there twice, once."""
    order = np.lexsort((rows["last"], rows["start_us"], rows["series"]))
    series, times_us, values = (rows[name][order] for name in ("series", "start_us", "last"))
    same = (series[1:] == series[:-1]) & (times_us[1:] == times_us[:-1]) & (values[1:] == values[:-1])
    new = np.append(np.ones(min(1, len(series)), dtype=bool), ~same)
    series, times_us, values = series[new], times_us[new], values[new]
    begins = np.searchsorted(series, np.arange(len(keys) + 1)).tolist()
    waiting = 0
    for key, begin, end in zip(keys, begins, begins[1:], strict=False):
        if begin < end:
            store.extend(key, times_us[begin:end], values[begin:end])
        waiting += end - begin
        if waiting > _FOLD_SAMPLES:
            tiers.fold()
            waiting = 0
    tiers.fold()


def _samples_of(found: Lines) -> _Read:
    series, files, times_s, values = (np.array(column) for column in found.samples)
    times_us = np.rint(times_s * SECOND_US).astype(np.int64)
    # Samples that are not finite are dropped here: no query returns them.
    rows = of_samples(series, times_us, values)
    return _Read(rows, files[np.isfinite(values)], np.full(n_rows(rows), SAMPLES, dtype=np.int64))


def _summaries_of(found: Lines) -> _Read:
    series, files, widths_s, starts_s, *numbers, last_s = (np.array(column) for column in found.summaries)
    widths_us, start_us, last_us = (np.rint(x * SECOND_US).astype(np.int64) for x in (widths_s, starts_s, last_s))
    named = dict(zip(("count", "sum", "min", "max", "last"), numbers, strict=True))
    rows = {**named, "series": series, "start_us": start_us, "last_us": last_us}
    usable = np.isin(widths_us, WIDTHS_US) & (named["count"] >= 1) & np.all(np.isfinite(numbers), axis=0)
    usable &= (last_us >= start_us) & (last_us < start_us + widths_us)
    return _Read({name: rows[name] for name in ROW_COLUMNS}, files, widths_us).kept(usable)


def _disentangled(samples: _Read, summaries: _Read) -> tuple[_Read, _Read]:
    """Leave one file's lines of each minute of a series for which there are summaries, or two of different times."""

    def joined(column: str) -> NDArray[Any]:
        return np.concatenate([samples.rows[column], summaries.rows[column]])

    minutes = np.concatenate([samples.minutes(), summaries.minutes()])
    series, counts = joined("series"), joined("count")
    files = np.concatenate([samples.files, summaries.files])
    widths_us = np.concatenate([samples.widths_us, summaries.widths_us])

    order = np.lexsort((files, minutes, series))
    group = np.append(True, (np.diff(series[order]) != 0) | (np.diff(minutes[order]) != 0)).cumsum() - 1
    begins = np.flatnonzero(np.append(True, (np.diff(group) != 0) | (np.diff(files[order]) != 0)))
    of_file = group[begins]
    total, coarsest = np.add.reduceat(counts[order], begins), np.maximum.reduceat(widths_us[order], begins)
    first_us = np.minimum.reduceat(joined("start_us")[order], begins)
    last_us = np.maximum.reduceat(joined("last_us")[order], begins)

    def best_of(possible: NDArray[np.bool_]) -> NDArray[np.intp]:
        ranked: NDArray[np.intp] = np.lexsort(
            (files[order][begins], -coarsest, np.where(possible, total, -1.0), of_file)
        )
        is_last = np.append(np.diff(of_file[ranked]) != 0, True)
        found: NDArray[np.intp] = ranked[is_last]
        return found

    best = best_of(np.ones(len(begins), dtype=bool))
    apart = (last_us < first_us[best][of_file]) | (first_us > last_us[best][of_file])
    second = best_of(apart)  # of another run of the node's telemetry, if it is of another time
    chosen = np.zeros(len(begins), dtype=bool)
    chosen[best], chosen[second[apart[second]]] = True, True
    contested = np.maximum.reduceat(widths_us[order], np.flatnonzero(np.diff(group, prepend=-1)))[group] != SAMPLES
    kept = np.empty(len(order), dtype=bool)
    kept[order] = ~contested | np.repeat(chosen, np.diff(begins, append=len(order)))
    n_samples = n_rows(samples.rows)
    return samples.kept(kept[:n_samples]), summaries.kept(kept[n_samples:])
