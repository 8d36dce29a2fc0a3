"""What the page and a report draw of one metric: a curve of its series over time, and a map of its newest values."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.catalogue import CATALOGUE
from laggard.telemetry.nodes.sources import Found, Source
from laggard.telemetry.page.content import MILLISECOND_US, is_probe, numbers, recorded_means, unit_of
from laggard.telemetry.query.aggregators import aggregator
from laggard.telemetry.query.engine import Span, evaluate
from laggard.telemetry.query.parsing import SubQuery, series_query
from laggard.telemetry.query.times import SECOND_US

MAX_POINTS = 1_000
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
    query = series_query(metric, f"{step_s}s-{how}")
    return Asked(query, span, source.evaluate(query, span))


def curve_of(asked: Asked, *, drawn: Sequence[Device], apart: Collection[Device]) -> dict[str, Any]:
    """Return a metric over its time range: lines of some devices, and a band of all series that are not apart."""
    answers, metric = asked.found.answers, asked.query.metric
    series = [TimeSeries(each.metric, each.tags, each.times_us, each.values) for each in answers]
    by_device: dict[Device, list[TimeSeries]] = {}
    for each in series:
        host, gpu = each.tags.get("host", ""), each.tags.get("gpu", "")
        for device in {(host, gpu), (host, "")}:
            by_device.setdefault(device, []).append(each)
    others = peers_of(series, [each for device in apart for each in by_device.get(device, ())])
    times = np.unique(np.concatenate([each.times_us for each in series])) if series else np.zeros(0, np.int64)
    names = ("p05", "p50", "p95") if metric in CATALOGUE or is_probe(metric) else ("min", "avg", "max")
    means, n_series = recorded_means(others)
    shown = zip(names, (others, means, others), strict=True)

    def merged(how: str, parts: list[TimeSeries]) -> list[float | None]:
        query, values = replace(asked.query, aggregator=aggregator(how)), np.full(len(times), np.nan)
        for answer in evaluate(query, asked.span, parts, downsampled=True):
            values[np.searchsorted(times, answer.times_us)] = answer.values
        return numbers(values)

    low, middle, high = (merged(name, of) for name, of in shown)
    lines = [merged("avg", by_device.get(device, [])) for device in drawn]
    return {
        "unit": unit_of(metric),
        "n_series": n_series,
        "averages_s": asked.found.approximate_us // SECOND_US,
        "times": (times // MILLISECOND_US).tolist(),
        "low": low,
        "middle": middle,
        "high": high,
        "lines": [
            {"host": host, "gpu": gpu, "values": values} for (host, gpu), values in zip(drawn, lines, strict=True)
        ],
    }


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
