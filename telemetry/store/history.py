"""All that one store has of its series, on one time axis: its samples and its tiers of summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.kvstore.series.sample_store import SampleStore, SeriesKey
from laggard.kvstore.series.timeseries import Times, TimeSeries
from laggard.telemetry.query.downsampling import Downsample, buckets
from laggard.telemetry.query.engine import Span, is_wanted
from laggard.telemetry.query.parsing import SubQuery
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.store.planning import SAMPLES, Grid, Origin, Segment, plan
from laggard.telemetry.store.reductions import Reductions
from laggard.telemetry.store.summaries import (
    COLUMNS,
    Summaries,
    by_series_and_time,
    columns_for,
    concatenated,
    merged,
    n_rows,
    of_samples,
    reduced,
    where,
)
from laggard.telemetry.store.tiers import Known, Tiers

# A function that needs every sample, such as a percentile, uses averages of a second beyond this.
MAX_SAMPLES = 1_000_000
# While a store drops what is old, a plan may be overtaken.
ATTEMPTS = 3


@dataclass(slots=True)
class Downsampled:
    """Downsampled series, and the width of the buckets whose averages stand for samples; 0: the answer is exact."""

    series: list[TimeSeries]
    approximate_us: int = 0


@dataclass(frozen=True, slots=True)
class Summarized:
    """Summaries of one series: the width of their buckets, the series, and the rows."""

    width_us: int
    key: SeriesKey
    rows: Summaries


class _Answer:
    """The series that a query selects, with their places in the answer."""

    def __init__(self) -> None:
        self.places: dict[SeriesKey, int] = {}
        self.tags: list[Mapping[str, str]] = []

    def place(self, key: SeriesKey, tags: Mapping[str, str]) -> int:
        place = self.places.setdefault(key, len(self.tags))
        if place == len(self.tags):
            self.tags.append(tags)
        return place


class History:
    """Samples and tiers of the same series."""

    def __init__(self, tiers: Tiers, samples: SampleStore | None = None, beside: History | None = None) -> None:
        self.tiers = tiers  # everything, in summaries
        self.began_us = 0  # what an earlier process of the node had before then is lost
        self._beside = beside  # a history of other series, of which less is left; it has sources of its own
        self._has_samples = samples is not None
        # The newest samples; None: there are only summaries
        self.samples = samples or SampleStore(1.0, clock=lambda: 0.0)
        self._reductions = Reductions(self.samples)

    def downsampled(
        self,
        query: SubQuery,
        span: Span,
        wanted: Callable[[Mapping[str, str]], bool] | None = None,
        from_source: Callable[[str], bool] = lambda _: True,
    ) -> Downsampled:
        """Return the series that a query selects, processed as :func:`~.engine.downsample_series` does."""
        wanted = wanted or (lambda tags: is_wanted(query, tags))
        spec, starts, grid = _asked(query, span)
        answer = _Answer()
        chosen = {
            each.number: answer.place(each.key, each.tags)
            for each in self.tiers.known(query.metrics)
            if from_source(each.source) and wanted(each.tags)
        }
        rows, reduced, segments = self._rows(query.metrics, grid, wanted, answer, chosen)
        series = _joined(_series_of(answer, spec, starts, by_series_and_time(rows)), reduced)
        coarse = max((segment.width_us for segment in segments if not segment.exact), default=0)
        if self._beside is not None:
            more = self._beside.downsampled(query, span, wanted, from_source)
            return Downsampled([*series, *more.series], max(coarse if series else 0, more.approximate_us))
        return Downsampled(series, coarse if series else 0)

    def grid(self, query: SubQuery, span: Span) -> Grid:
        """Return what a query asks for, as a plan needs it."""
        return _asked(query, span)[2]

    def origins(self) -> list[Origin]:
        """Return the sources of this history, the finest first."""
        samples = [Origin(SAMPLES, self.samples.complete_from_us)] if self._has_samples else []
        return [*samples, *self.tiers.origins()]

    def everything(
        self, metric: str, from_source: Callable[[str], bool] = lambda _: True
    ) -> tuple[list[Summarized], list[TimeSeries]]:
        """Return all that there is of a metric, each time from its finest source: summaries, and samples after them."""
        known = [each for each in self.tiers.known([metric]) if from_source(each.source)]
        for _ in range(ATTEMPTS):
            origins = self.origins()
            segments = plan(Grid(0, ALL_TIME_US, SAMPLES, "avg"), origins)
            summaries: list[Summarized] = []
            samples: list[TimeSeries] = []
            for segment in reversed(segments):
                if segment.width_us == SAMPLES:
                    samples += self.samples.read([metric], segment.begin_us, segment.end_us)
                else:
                    summaries += self._summarized(segment, known)
            if not _overtaken(segments, self.origins(), origins):
                break
        return summaries, samples

    def _summarized(self, segment: Segment, known: Sequence[Known]) -> Iterator[Summarized]:
        rows = self.tiers.read([segment], {each.number: each.number for each in known}, COLUMNS)
        rows = merged(rows, segment.width_us)
        numbers = rows["series"]
        for each in known:
            of_series = slice(int(numbers.searchsorted(each.number)), int(numbers.searchsorted(each.number, "right")))
            if of_series.start < of_series.stop:
                yield Summarized(segment.width_us, each.key, where(rows, of_series))

    def series_keys(self) -> list[SeriesKey]:
        """Return the keys of all series."""
        more = [] if self._beside is None else self._beside.series_keys()
        return list(dict.fromkeys([*self.samples.series_keys(), *(each.key for each in self.tiers.known()), *more]))

    def metrics(self) -> set[str]:
        """Return the names of all metrics."""
        return {metric for metric, _ in self.series_keys()}

    def span_us(self) -> tuple[int, int] | None:
        """Return about when the oldest and the newest samples were taken; None if there are none."""
        oldest_us, newest = self.samples.oldest_us(), self.samples.newest()
        spans = [] if oldest_us is None else [(oldest_us, max(each.time_us for each in newest))]
        # What is also there as samples has more exact times.
        kept_us = self.samples.complete_from_us if self._has_samples else ALL_TIME_US
        if (span := self.tiers.span_us()) is not None and (not spans or span[0] < kept_us):
            spans.append((span[0], min(span[1], kept_us)))
        if self._beside is not None and (more := self._beside.span_us()) is not None:
            spans.append(more)
        return (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else None

    def _rows(
        self,
        metrics: Sequence[str],
        grid: Grid,
        wanted: Callable[[Mapping[str, str]], bool],
        answer: _Answer,
        chosen: Mapping[int, int],
    ) -> tuple[Summaries, list[TimeSeries], list[Segment]]:
        """Return the rows of the chosen series, the buckets that follow, and the segments that both come from."""
        for _ in range(ATTEMPTS):
            origins = self._affordable(metrics, grid, wanted)
            segments = plan(grid, origins)
            tiers = [segment for segment in segments if segment.width_us != SAMPLES]
            columns = columns_for(grid.function)
            tables = [self.tiers.read(tiers, chosen, columns)] if tiers else []
            reduced: list[TimeSeries] = []
            for segment in segments:
                if segment.width_us == SAMPLES:
                    whole_us = self._whole_us(grid, segment)
                    if segment.begin_us < whole_us:
                        tables.append(self._samples(metrics, replace(segment, end_us=whole_us), wanted, answer))
                    if whole_us < segment.end_us:
                        how = grid.function, grid.step_us
                        reduced += self._reductions.read(metrics, how, whole_us, segment.end_us, wanted)
            if not _overtaken(segments, self.origins(), origins):
                break
        return concatenated(tables, columns), reduced, segments

    def _whole_us(self, grid: Grid, segment: Segment) -> int:
        """Return where whole buckets of samples begin that are read as such; the end of the segment: nowhere."""
        # Elsewhere a bucket may go on in another source.
        if grid.step_us == SAMPLES or any(grid.is_exact(origin.width_us) for origin in self.tiers.origins()):
            return segment.end_us
        return min(-(-segment.begin_us // grid.step_us) * grid.step_us, segment.end_us)

    def _affordable(
        self, metrics: Sequence[str], grid: Grid, wanted: Callable[[Mapping[str, str]], bool]
    ) -> list[Origin]:
        """Return the sources, without the samples if too many of them would be read."""
        origins = self.origins()
        samples = sum(
            self.samples.count(metrics, segment.begin_us, segment.end_us, wanted)
            for segment in plan(grid, origins)
            if segment.width_us == SAMPLES and segment.end_us - segment.begin_us > SECOND_US
        )
        return origins if samples <= MAX_SAMPLES else origins[1:]

    def _samples(
        self, metrics: Sequence[str], segment: Segment, wanted: Callable[[Mapping[str, str]], bool], answer: _Answer
    ) -> Summaries:
        found = list(self.samples.matching(metrics, wanted))
        places = [answer.place((metric, tuple(tags.items())), tags) for metric, tags, _ in found]
        series = [stored for _, _, stored in found]
        at, times_us, values = self.samples.samples_of_all(series, segment.begin_us, segment.end_us - 1)
        return of_samples(np.array(places, dtype=np.int64)[at], times_us, values)


def _asked(query: SubQuery, span: Span) -> tuple[Downsample, Times | None, Grid]:
    """Return how to downsample, the starts of the buckets if the query gives them, and the grid."""
    spec = spec_of(query, span)
    starts = None if query.downsample is None else buckets(spec, span.start_us, span.end_us)
    begin_us = span.start_us if starts is None else int(starts[0])
    return spec, starts, Grid(begin_us, span.end_us + 1, spec.interval_us, spec.function)


def spec_of(query: SubQuery, span: Span) -> Downsample:
    """Return how a query's samples are combined; one that does not say so has a point a second, or all samples."""
    if query.downsample is not None:
        return query.downsample
    if span.milliseconds:
        return Downsample(SAMPLES, "avg")
    return Downsample(SECOND_US, query.aggregator.of_one_series)


def _series_of(answer: _Answer, spec: Downsample, starts: Times | None, rows: Summaries) -> list[TimeSeries]:
    """Return one series for each place, of rows that are sorted by place and time."""
    if n_rows(rows) == 0:
        return []
    if starts is None:
        bucket_us = rows["start_us"] - rows["start_us"] % spec.interval_us
    else:
        bucket_us = np.maximum(rows["start_us"], starts[0])
        bucket_us -= bucket_us % spec.interval_us
    places = rows["series"]
    new_series = places[1:] != places[:-1]
    is_first = np.append(True, new_series | (bucket_us[1:] != bucket_us[:-1]))
    begins = np.flatnonzero(is_first) if spec.interval_us != SAMPLES else np.arange(len(places))
    values, times_us, places = reduced(spec.function, rows, begins), bucket_us[begins], places[begins]
    first = np.flatnonzero(np.diff(places, prepend=-1))
    keys = list(answer.places)
    series = []
    shared, shared_bytes = times_us[:0], b""
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(places)], strict=True):
        place, own_us = int(places[begin]), times_us[begin:end]
        # Later steps are quicker for series that share the array of their times.
        if (own_bytes := own_us.tobytes()) != shared_bytes:
            shared, shared_bytes = own_us, own_bytes
        series.append(TimeSeries(keys[place][0], answer.tags[place], shared, values[begin:end]))
    return series


def _joined(early: Sequence[TimeSeries], late: Sequence[TimeSeries]) -> list[TimeSeries]:
    """Return series of which a part may be in each of two lists, one after the other."""
    before = {(each.metric, tuple(each.tags.items())): each for each in early}
    joined = []
    for each in late:
        first = before.pop((each.metric, tuple(each.tags.items())), None)
        if first is not None:
            times_us = np.concatenate([first.times_us, each.times_us])
            each = replace(each, times_us=times_us, values=np.concatenate([first.values, each.values]))
        joined.append(each)
    return [*before.values(), *joined]


def _overtaken(segments: Sequence[Segment], now: Sequence[Origin], then: Sequence[Origin]) -> bool:
    """Return whether a source that was read from has dropped something since the plan was made."""
    before = {origin.width_us: origin.complete_from_us for origin in then}
    after = {origin.width_us: origin.complete_from_us for origin in now}
    return any(
        after[each.width_us] > max(each.begin_us, before[each.width_us]) for each in segments if each.width_us in after
    )
