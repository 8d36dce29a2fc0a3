"""What the page and a report draw of one metric: a curve of its series over time, and a map of its newest values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laggard.kvstore.series.timeseries import Floats, TimeSeries
from laggard.telemetry.catalogue import CATALOGUE, STEP
from laggard.telemetry.link_matrix import natural
from laggard.telemetry.nodes.sources import Found, Source
from laggard.telemetry.page.content import MILLISECOND_US, OF_SERIES, is_probe, numbers, recorded_means, unit_of
from laggard.telemetry.query.aggregators import aggregator
from laggard.telemetry.query.engine import Span, evaluate
from laggard.telemetry.query.parsing import SubQuery, series_query
from laggard.telemetry.query.rates import Rate, rate
from laggard.telemetry.query.times import SECOND_US

MAX_POINTS = 1_000
MAX_LINES, MAX_FAR = 64, 6
_DEVICE = ("host", "gpu")
_PERCENTILES, _EXTREMES = ("p05", "p50", "p95"), ("min", "avg", "max")
# Far is a line that for this share of the time is this many times as far from the median as lines usually are.
_SHARE_OF_FAR, _FAR = 0.1, 4.0
_FAR_AT_ONCE = 10.0  # so many times as far as lines ever are
_RATE = Rate(counter=True, drop_resets=True)
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200, 86_400)

Device = tuple[str, str]
"""Host and GPU; without a GPU it stands for all that its node has."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a source has of a metric, downsampled: the query, its range, and all series."""

    query: SubQuery
    span: Span
    found: Found


def ask(source: Source, metric: str, span: Span, step_s: int, how: str = "avg") -> Asked:
    """Return all series of a metric, with a point for each step."""
    return ask_all(source, [(metric, span, step_s)], how)[0]


def ask_all(source: Source, wanted: Sequence[tuple[str, Span, int]], how: str = "avg") -> list[Asked]:
    """Return all series of several metrics at once: each with its range and its step."""
    asked = [(series_query(metric, f"{step_s}s-{how}"), span) for metric, span, step_s in wanted]
    return [Asked(*each, found) for each, found in zip(asked, source.evaluate_all(asked), strict=True)]


def curve_of(asked: Asked, *, drawn: Sequence[Device], apart: Collection[Device]) -> dict[str, Any]:
    """Return a metric over its time range: lines of some devices, and a band of all series that are not apart."""
    series = _series(asked)
    by_device: dict[tuple[str, ...], list[TimeSeries]] = {}
    for each in series:
        host, gpu = each.tags.get("host", ""), each.tags.get("gpu", "")
        for device in {(host, gpu), (host, "")}:
            by_device.setdefault(device, []).append(each)
    others = peers_of(series, [each for device in apart for each in by_device.get(device, ())])
    is_of_peers = asked.query.metric in CATALOGUE or is_probe(asked.query.metric)
    curve = _Curve(asked, series)
    lines: dict[tuple[str, ...], Floats] = {device: curve.merged("avg", by_device.get(device, [])) for device in drawn}
    return curve.answer(_DEVICE, lines, lines, curve.band(_PERCENTILES if is_of_peers else _EXTREMES, others))


def curve_by(asked: Asked, by: Sequence[str], most: int = MAX_LINES) -> dict[str, Any]:
    """Return a metric over its time range: a line for each value of some tags; of very many, those that differ most."""
    series = _series(asked)
    groups: dict[tuple[str, ...], list[TimeSeries]] = {}
    for each in series:
        groups.setdefault(tuple(each.tags.get(name, "") for name in by), []).append(each)
    curve = _Curve(asked, series)
    names = sorted(groups, key=lambda name: [natural(part) for part in name])
    values = {name: curve.merged("avg", groups[name]) for name in names}
    far = [names[at] for at in far_from_others(np.array([*values.values()]))] if names else []
    if len(names) <= most:
        return curve.answer(by, values, far, {})
    rest = [each for name in names if name not in far for each in groups[name]]
    return curve.answer(by, {name: values[name] for name in far}, far, curve.band(_EXTREMES, rest))


def far_from_others(lines: Floats, most: int = MAX_FAR) -> list[int]:
    """Return the lines that are far from the median of all: first those that are for a tenth of the time, then spikes.

    The farthest come first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a time at which no line has a value
        distances = np.nan_to_num(_held(np.abs(lines - np.nanmedian(lines, axis=0))))
        rounding = np.nan_to_num(1e-9 * np.nanmedian(np.abs(lines)))
    for_long, at_most = np.quantile(distances, [1 - _SHARE_OF_FAR, 1.0], axis=1, method="lower")
    found = [
        at
        for distance, times in ((for_long, _FAR), (at_most, _FAR_AT_ONCE))
        for at in np.argsort(-distance, kind="stable").tolist()
        if distance[at] > times * max(float(np.median(distance)), rounding)
    ]
    return list(dict.fromkeys(found))[:most]


def _held(rows: Floats) -> Floats:
    """Let each value stand until the next one of its row: a rank that is slow has few."""
    at = np.where(np.isnan(rows), 0, np.arange(rows.shape[1]))
    return np.take_along_axis(rows, np.maximum.accumulate(at, axis=1), axis=1)


class _Curve:
    """The series of a metric on the times that any of them has."""

    def __init__(self, asked: Asked, series: list[TimeSeries]) -> None:
        self._asked = asked
        self._times = np.unique(np.concatenate([each.times_us for each in series])) if series else np.zeros(0, np.int64)

    def merged(self, how: str, series: list[TimeSeries]) -> Floats:
        query, values = replace(self._asked.query, aggregator=aggregator(how)), np.full(len(self._times), np.nan)
        # Of thousands of lines each is one series, which is an answer as it is.
        for answer in series if len(series) == 1 else evaluate(query, self._asked.span, series, downsampled=True):
            values[np.searchsorted(self._times, answer.times_us)] = answer.values
        return values

    def band(self, names: Sequence[str], series: list[TimeSeries]) -> dict[str, Any]:
        """Return what some series have in common; nothing if there are none."""
        means, n_series = recorded_means(series)
        parts = zip(("low", "middle", "high"), names, (series, means, series), strict=True)
        band = {part: numbers(self.merged(name, of)) for part, name, of in parts}
        # Of very many lines a record has only these three.
        is_range = n_series > 1 and any(OF_SERIES in each.tags for each in series)
        about = {"n_series": n_series, "is_percentiles": names == _PERCENTILES, "is_range": is_range}
        return about | band if series else {}

    def answer(
        self,
        by: Sequence[str],
        lines: Mapping[tuple[str, ...], Floats],
        named: Collection[tuple[str, ...]],
        band: dict[str, Any],
    ) -> dict[str, Any]:
        metric = self._asked.query.metric
        digits = 12 if metric == STEP else 5
        return {
            "unit": f"{unit_of(metric)}/s" if _is_counter(metric) else unit_of(metric),
            "averages_s": self._asked.found.approximate_us // SECOND_US,
            "times": (self._times // MILLISECOND_US).tolist(),
            "by": by,
            "lines": [
                {"of": of, "is_far": of in named, "values": numbers(values, digits)} for of, values in lines.items()
            ],
            "n_series": 0,
            "is_percentiles": False,
            "is_range": False,
            **band,
        }


def _series(asked: Asked) -> list[TimeSeries]:
    """Return the series as they are drawn: of a counter, how fast it rises."""
    columns = [(each, each.times_us, each.values) for each in asked.found.answers]
    if _is_counter(asked.query.metric):
        columns = [(each, *rate(_RATE, times_us, values)) for each, times_us, values in columns]
    # One sample alone does not say how fast.
    return [TimeSeries(each.metric, each.tags, times_us, values) for each, times_us, values in columns if len(times_us)]


def _is_counter(metric: str) -> bool:
    return metric in CATALOGUE and CATALOGUE[metric].kind == "counter"


def newest_of(asked: Asked) -> dict[Device, tuple[float, str]]:
    """Return the newest value of each device (or node), and its model."""
    values: dict[Device, list[float]] = {}
    models = {}
    for each in asked.found.answers:
        if "host" in each.tags:
            device = each.tags["host"], each.tags.get("gpu", "")
            values.setdefault(device, []).append(float(each.values[-1]))
            models[device] = each.tags.get("model", "")
    # Of several series of one device, such as those of its processes or ranks, the map shows the mean.
    return {device: (sum(each) / len(each), models[device]) for device, each in values.items()}


def peers_of(series: list[TimeSeries], chosen: list[TimeSeries]) -> list[TimeSeries]:
    """Return the series that chosen ones are compared with: all others of their models; all if none is chosen."""
    models = {each.tags.get("model", "") for each in chosen}
    left = {id(each) for each in chosen}
    return [each for each in series if id(each) not in left and (not models or each.tags.get("model", "") in models)]


def step(span: Span, points: int) -> int:
    """Return the width of a chart's buckets in seconds: the smallest of a few that gives no more than ``points``."""
    wanted_s = (span.end_us - span.start_us) / SECOND_US / max(1, min(MAX_POINTS, points))
    return next((step_s for step_s in _STEPS_S if step_s >= wanted_s), math.ceil(wanted_s))
