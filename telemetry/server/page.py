"""The page's handlers: the document at ``/``, and what it shows: the job, a map of all devices, and curves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from starlette.responses import Response

from laggard.kvstore.series.timeseries import Floats, Times, TimeSeries
from laggard.telemetry.catalogue import CATALOGUE
from laggard.telemetry.errors import BadQueryError, RequestError
from laggard.telemetry.page import live_document
from laggard.telemetry.page.content import (
    MILLISECOND_US,
    accused_of,
    events_of,
    is_probe,
    launches_of,
    map_of,
    metrics_of,
    numbers,
    recorded_means,
    unit_of,
)
from laggard.telemetry.query import SubQuery
from laggard.telemetry.query.engine import Answer, Span, evaluate
from laggard.telemetry.query.parsing import sub_query_from_json
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.server.answers import JsonResponse
from laggard.telemetry.server.handlers import Handler, Service
from laggard.telemetry.server.links import links
from laggard.telemetry.server.requests import Call

MAX_POINTS = 1_000
MAX_LINES = 12
# Rollups have buckets of ten seconds, and a detector that probes rarely does so once a minute.
_NEWEST, _NEWEST_WITHIN_S = "10s-last", 130
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200, 86_400)


def page(_: Service, __: Call) -> Response:
    """``/``: the page, which holds nothing of the job."""
    found = live_document()
    headers = {
        "content-security-policy": found.policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(found.html, headers=headers, media_type="text/html")


def job(service: Service, call: Call) -> Response:
    """``/page/job``: what there is to show in a time range, in milliseconds of Unix time."""
    span = _span(call)
    events = service.events.between(0, span.end_us)
    reach = service.reach()
    # A launch that began before the range goes on in it.
    shown = [event for event in events if event.time_us >= span.start_us or event.kind == "launch"]
    return JsonResponse(
        {
            "name": reach.name,
            "state": "Running" if reach.ended_us is None else "From dumps",
            "live": reach.ended_us is None,
            "began": reach.began_us // MILLISECOND_US,
            "ended": (reach.newest_us if reach.ended_us is None else reach.ended_us) // MILLISECOND_US,
            "nodes": sorted(reach.nodes),
            "missing": sorted(reach.missing),
            "launches": launches_of(service.events.launches),
            "metrics": metrics_of(service.source.series_keys()),
            **accused_of(events),
            **events_of(shown),
        }
    )


def device_map(service: Service, call: Call) -> Response:
    """``/page/map``: the newest reading of every device (or node) before a time, and its ratio to its model's."""
    metric, end_us = _metric(call), _milliseconds(call, "end")
    span = Span(end_us - _NEWEST_WITHIN_S * SECOND_US, end_us)
    found = service.source.evaluate(_sub_query(metric, "none", _NEWEST), span)
    values: dict[tuple[str, str], list[float]] = {}
    models = {}
    for each in found.answers:
        if "host" in each.tags and len(each.values):
            device = each.tags["host"], each.tags.get("gpu", "")
            values.setdefault(device, []).append(float(each.values[-1]))
            models[device] = each.tags.get("model", "")
    # Of several series of one device, such as those of its processes or ranks, the map shows the mean.
    newest = {device: (sum(each) / len(each), models[device]) for device, each in values.items()}
    return JsonResponse(map_of(metric, newest, _known_devices(service, metric, newest)))


def curve(service: Service, call: Call) -> Response:
    """``/page/curve``: one metric over a time range, as lines of chosen devices and a band of all other series."""
    metric, span = _metric(call), _span(call)
    devices = [_device(text) for text in call.parameters.getlist("device")][:MAX_LINES]
    query = _sub_query(metric, "none", f"{step(span, call.number('points', 300))}s-avg")
    found = service.source.evaluate(query, span)
    answers = found.answers
    series = [TimeSeries(each.metric, each.tags, each.times_us, each.values) for each in answers if len(each.times_us)]
    lines = [[each for each in series if _is_of(each, device)] for device in devices]
    others = peers_of(series, [each for line in lines for each in line])
    times = np.unique(np.concatenate([each.times_us for each in series])) if series else np.zeros(0, np.int64)
    names = ("p05", "p50", "p95") if metric in CATALOGUE or is_probe(metric) else ("min", "avg", "max")
    means, n_series = recorded_means(others)
    shown = zip(names, (others, means, others), strict=True)
    low, middle, high = (numbers(_on_grid(_merged(query, name, span, of), times)) for name, of in shown)
    drawn = [_merged(query, "avg", span, line) for line in lines]
    return JsonResponse(
        {
            "unit": unit_of(metric),
            "n_series": n_series,
            "averages_s": found.approximate_us // SECOND_US,
            "times": (times // MILLISECOND_US).tolist(),
            "low": low,
            "middle": middle,
            "high": high,
            "lines": [
                {"host": host, "gpu": gpu, "values": numbers(_on_grid(line, times))}
                for (host, gpu), line in zip(devices, drawn, strict=True)
            ],
        }
    )


def _known_devices(service: Service, metric: str, newest: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
    """Return the devices that a metric's map has though they may have no newest reading; none if it is of nodes."""
    if devices := service.reach().devices:
        return devices if is_probe(metric) or any(gpu for _, gpu in newest) else ()
    tags = [dict(tags) for _, tags in service.source.series_keys(metric)]  # a dump does not say what the job had
    return {(each["host"], each["gpu"]) for each in tags if {"host", "gpu"} <= each.keys()}


def peers_of(series: list[TimeSeries], chosen: list[TimeSeries]) -> list[TimeSeries]:
    """Return the series that chosen ones are compared with: all others of their models; all if none is chosen."""
    models = {each.tags.get("model", "") for each in chosen}
    left = {id(each) for each in chosen}
    return [each for each in series if id(each) not in left and (not models or each.tags.get("model", "") in models)]


def step(span: Span, points: int) -> int:
    """Return the width of a chart's buckets in seconds: the smallest of a few that gives no more than ``points``."""
    wanted_s = (span.end_us - span.start_us) / SECOND_US / max(1, min(MAX_POINTS, points))
    return next((step_s for step_s in _STEPS_S if step_s >= wanted_s), math.ceil(wanted_s))


def _is_of(series: TimeSeries, device: tuple[str, str]) -> bool:
    host, gpu = device
    return series.tags.get("host") == host and gpu in {"", series.tags.get("gpu")}


def _merged(query: SubQuery, aggregator: str, span: Span, series: list[TimeSeries]) -> list[Answer]:
    """Merge downsampled series into one."""
    body = {**query.source, "aggregator": aggregator}
    return evaluate(sub_query_from_json(body, 0), span, series, downsampled=True)


def _on_grid(answers: list[Answer], times: Times) -> Floats:
    values = np.full(len(times), np.nan)
    for answer in answers:
        values[np.searchsorted(times, answer.times_us)] = answer.values
    return values


def _sub_query(metric: str, aggregator: str, downsample: str) -> SubQuery:
    body = {"metric": [metric], "aggregator": aggregator, "downsample": downsample}
    return sub_query_from_json(body, 0)


def _metric(call: Call) -> str:
    name = call.parameters.get("metric", "")
    if not name:
        raise BadQueryError("missing 'metric': name one")
    return name


def _device(text: str) -> tuple[str, str]:
    host, slash, gpu = text.rpartition("/")
    if not slash or not host:
        raise BadQueryError(f"device={text[:80]!r} is not <host>/<gpu>")
    return host, gpu


def _span(call: Call) -> Span:
    start_us, end_us = _milliseconds(call, "start"), _milliseconds(call, "end")
    if end_us <= start_us:
        raise BadQueryError("the end of the range is not after its start")
    return Span(start_us, end_us)


def _milliseconds(call: Call, name: str) -> int:
    text = call.parameters.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 14:
        raise RequestError(400, f"{name} is {text[:40]!r}: it must be a Unix time in milliseconds")
    return int(text) * MILLISECOND_US


PAGE_ROUTES: Mapping[str, tuple[tuple[str, ...], Handler]] = {
    "/": (("GET",), page),
    "/page/job": (("GET",), job),
    "/page/map": (("GET",), device_map),
    "/page/curve": (("GET",), curve),
    "/page/links": (("GET",), links),
}
