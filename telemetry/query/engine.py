"""Evaluation of one sub-query: filter, group, downsample, merge, rate, in OpenTSDB's order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.timeseries import Floats, Times, TimeSeries, tidy, within
from laggard.telemetry.errors import QueryTooLargeError
from laggard.telemetry.query.aggregators import Aggregator, aggregator
from laggard.telemetry.query.downsampling import Downsample, buckets, downsample
from laggard.telemetry.query.filters import matches
from laggard.telemetry.query.parsing import SubQuery
from laggard.telemetry.query.rates import rate
from laggard.telemetry.query.times import SECOND_US

MAX_ANSWER_POINTS = 2_000_000
# Of the matrix that the series of a group are written into, eight bytes each.
MAX_CELLS = 20_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """The range of a query and the resolution of its answer."""

    start_us: int  # both inclusive
    end_us: int
    milliseconds: bool = False  # whether points may be less than a second apart


@dataclass(slots=True)
class Answer:
    """One series of the answer."""

    metric: str
    tags: dict[str, str]  # tags that all series of the group share
    aggregate_tags: list[str]  # keys of tags that all have, with different values
    times_us: Times  # `(n,)` each; a value is NaN only if the query asks for missing values to be shown
    values: Floats


def is_wanted(query: SubQuery, tags: Mapping[str, str]) -> bool:
    """Return whether a series with these tags passes the query's filters."""
    return matches(query.filters, tags, explicit_tags=query.explicit_tags)


def downsample_series(query: SubQuery, span: Span, series: TimeSeries) -> TimeSeries:
    """Downsample one series as the query asks, so that less is sent; evaluating the result gives the same answer."""
    spec = query.downsample
    times_us, values = tidy(series.times_us, series.values)
    if spec is None:
        kept = (times_us >= span.start_us) & (times_us <= span.end_us)
        times_us, values = times_us[kept], values[kept]
        if not span.milliseconds:
            times_us, values = _whole_seconds(query, times_us, values)
        return replace(series, times_us=times_us, values=values)
    starts = buckets(spec, span.start_us, span.end_us)
    kept = (times_us >= starts[0]) & (times_us <= span.end_us)
    at, downsampled = downsample(spec, starts, times_us[kept], values[kept])
    return replace(series, times_us=starts[at], values=downsampled)


def evaluate(
    query: SubQuery,
    span: Span,
    series: Iterable[TimeSeries],
    *,
    downsampled: bool = False,
    max_points: int = MAX_ANSWER_POINTS,
) -> list[Answer]:
    """Answer one sub-query."""
    if not downsampled:
        series = [downsample_series(query, span, each) for each in series if is_wanted(query, each.tags)]
    groups = sorted(_grouped(query, [each for each in series if len(each.times_us)]).items(), key=lambda item: item[0])
    return _bounded((_merged(query, span, metric, group) for (metric, _), group in groups), max_points)


def _bounded(lines: Iterable[Answer | None], max_points: int = MAX_ANSWER_POINTS) -> list[Answer]:
    answers, points = [], 0
    for line in lines:
        if line is not None:
            answers.append(line)
            points += len(line.times_us)
        if points > max_points:
            raise QueryTooLargeError(f"more than {max_points:,} points: filter, or downsample further")
    return answers


def _grouped(query: SubQuery, series: Sequence[TimeSeries]) -> dict[tuple[str, tuple[str, ...]], list[TimeSeries]]:
    keys = sorted({f.key for f in query.filters if f.group_by})
    groups: dict[tuple[str, tuple[str, ...]], list[TimeSeries]] = {}
    for each in series:
        if query.aggregator.name == "none":
            key = tuple(part for pair in sorted(each.tags.items()) for part in pair)
        else:
            key = tuple([each.tags.get(name, "") for name in keys])
        groups.setdefault((each.metric, key), []).append(each)
    return groups


def _merged(query: SubQuery, span: Span, metric: str, group: Sequence[TimeSeries]) -> Answer | None:
    spec = query.downsample
    if len(group) == 1 and query.aggregator.keeps_one and spec is not None and spec.fill is None:
        (only,) = group
        return _answer(query, span, only.times_us, None, only.values, metric, dict(only.tags), [])
    if spec is None:
        times_us = np.unique(np.concatenate([each.times_us for each in group]))
    else:
        times_us = buckets(spec, span.start_us, span.end_us)
    present, values = merge(query.aggregator, times_us, group, None if spec is None else spec.fill)
    tags, aggregate_tags = _common_tags([each.tags for each in group])
    return _answer(query, span, times_us, present, values, metric, tags, sorted(aggregate_tags))


def merge(
    how: Aggregator, times_us: Times, group: Sequence[TimeSeries], fill: float | None, max_cells: int = MAX_CELLS
) -> tuple[NDArray[np.bool_], Floats]:
    """Return at which times a group has points, and its value at each; ``fill`` is that of a series without a point."""
    if len(group) * len(times_us) > max_cells:
        raise QueryTooLargeError(
            f"{how.name} over {len(group)} series at {len(times_us)} times is too large: filter, or downsample further"
        )
    grid = times_us.astype(np.float64)
    matrix = np.full((len(group), len(grid)), np.nan if fill is None else fill)
    present = np.zeros(len(grid), dtype=bool)
    shared_us, at = None, np.empty(0, dtype=np.intp)
    for row, each in zip(matrix, group, strict=True):
        if each.times_us is not shared_us:  # mostly all series have the same times
            shared_us, at = each.times_us, np.searchsorted(times_us, each.times_us)
            present[at] = True
        row[at] = each.values  # of several samples at one time the last counts
        between = slice(at[0], at[-1] + 1)
        if how.interpolates and fill is None and np.isnan(row[between]).any():
            row[between] = np.interp(grid[between], grid[at], row[at])
    return present, how.reduce(matrix)


def _answer(
    query: SubQuery,
    span: Span,
    times_us: Times,
    present: NDArray[np.bool_] | None,
    values: Floats,
    metric: str,
    tags: dict[str, str],
    aggregate_tags: list[str],
) -> Answer | None:
    spec = query.downsample
    if present is not None and (spec is None or spec.fill is None):
        times_us, values = times_us[present], values[present]
    if query.rate is not None:
        times_us, values = rate(query.rate, times_us, values)
    if spec is None or spec.fill is None:
        finite = np.isfinite(values)
        if not finite.all():
            times_us, values = times_us[finite], values[finite]
    kept = within(times_us, span.start_us, span.end_us)
    times_us, values = times_us[kept], values[kept]
    if not span.milliseconds and not (spec is not None and spec.is_whole_seconds):
        times_us, values = _whole_seconds(query, times_us, values)
    return Answer(metric, tags, aggregate_tags, times_us, values) if len(times_us) else None


def _whole_seconds(query: SubQuery, times_us: Times, values: Floats) -> tuple[Times, Floats]:
    # If the query does not say how to combine the points of a second, OpenTSDB uses the aggregator.
    seconds = times_us - times_us % SECOND_US
    if (seconds[1:] > seconds[:-1]).all():
        return seconds, values
    how = aggregator(query.downsample.function) if query.downsample else query.aggregator
    starts = np.unique(seconds)
    spec = Downsample(SECOND_US, how.of_one_series)
    return starts, downsample(spec, starts, seconds, values)[1]


def _common_tags(tag_sets: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], set[str]]:
    common = set.intersection(*(set(tags) for tags in tag_sets))
    same = {key: tag_sets[0][key] for key in common if all(tags[key] == tag_sets[0][key] for tags in tag_sets)}
    return dict(sorted(same.items())), common - set(same)
