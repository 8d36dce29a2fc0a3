"""The page's handlers: the document at ``/``, and what it shows: the job, a map of all devices, and curves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from laggard.kvstore.sample_store import SeriesKey
from laggard.kvstore.timeseries import Floats, Times, TimeSeries
from laggard.telemetry.catalogue import CATALOGUE, EVENTS
from laggard.telemetry.errors import BadQueryError, RequestError
from laggard.telemetry.events import Event
from laggard.telemetry.page import document
from laggard.telemetry.query import SubQuery
from laggard.telemetry.query.engine import Answer, Span, evaluate
from laggard.telemetry.query.parsing import sub_query_from_json
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.server.handlers import Handler, Reply, Service
from laggard.telemetry.server.requests import Call

__all__ = ["PAGE_ROUTES", "page"]

MAX_EVENTS = 2_000
MAX_POINTS = 1_000
MAX_LINES = 12
MAX_METRICS = 500
_MILLISECOND_US = 1_000
# Rollups have buckets of ten seconds, and a detector that probes rarely does so once a minute.
_NEWEST, _NEWEST_WITHIN_S = "10s-last", 130
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200, 86_400)
_PROBE = re.compile(r"probe")
_WELL_AGAIN = re.compile(r"\(well again, [a-z]+\)$")


def page(_: Service, __: Call) -> Reply:
    """``/``: the page, which holds nothing of the job."""
    found = document()
    headers = {
        "content-security-policy": found.policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Reply(found.html, headers=headers, text_type="text/html; charset=utf-8")


def job(service: Service, call: Call) -> Reply:
    """``/page/job``: what there is to show in a time range, in milliseconds of Unix time."""
    span = _span(call)
    events = service.events.between(0, span.end_us)
    reach = service.reach()
    # A launch that began before the range goes on in it.
    shown = [event for event in events if event.time_us >= span.start_us or event.kind == "launch"]
    return Reply(
        {
            "name": reach.name,
            "live": reach.ended_us is None,
            "began": reach.began_us // _MILLISECOND_US,
            "ended": (reach.newest_us if reach.ended_us is None else reach.ended_us) // _MILLISECOND_US,
            "nodes": sorted(reach.nodes),
            "missing": sorted(reach.missing),
            "metrics": _metrics(service.source.series_keys()),
            "accused": accused(events),
            "events": [_event(event) for event in shown[-MAX_EVENTS:]],
            "events_left_out": max(0, len(shown) - MAX_EVENTS),
        }
    )


def accused(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Return the devices (or nodes, with an empty GPU) that were found slow and not well again, the newest first."""
    found: dict[tuple[str, str], None] = {}
    for event in events:
        if event.kind == "verdict":
            found.pop((event.host, event.gpu), None)
            if not _WELL_AGAIN.search(event.text):
                found[event.host, event.gpu] = None
    return list(reversed(found))


def device_map(service: Service, call: Call) -> Reply:
    """``/page/map``: the newest reading of every device before a time, and its ratio to those of its model."""
    metric, end_us = _metric(call), _milliseconds(call, "end")
    span = Span(end_us - _NEWEST_WITHIN_S * SECOND_US, end_us)
    found = service.source.evaluate(_sub_query(metric, "none", _NEWEST), span)
    newest = {
        (each.tags["host"], each.tags["gpu"]): (float(each.values[-1]), each.tags.get("model", ""))
        for each in found.answers
        if "host" in each.tags and "gpu" in each.tags and len(each.values)
    }
    devices = sorted(newest, key=lambda device: (_natural(device[0]), _natural(device[1])))
    hosts = list(dict.fromkeys(host for host, _ in devices))
    number = {host: at for at, host in enumerate(hosts)}
    values = np.array([newest[device][0] for device in devices])
    return Reply(
        {
            "unit": _unit(metric),
            "is_probe": _is_probe(metric),
            "hosts": hosts,
            "host_of": [number[host] for host, _ in devices],
            "gpus": [gpu for _, gpu in devices],
            "values": _numbers(values),
            "ratios": _numbers(ratios_to_peers(values, [newest[device][1] for device in devices])),
        }
    )


def ratios_to_peers(values: Floats, models: list[str]) -> Floats:
    """Return each value over the median of its model; NaN where there is no peer, or the median is not above 0."""
    ratios = np.full(len(values), np.nan)
    for model in dict.fromkeys(models):
        of_model = np.array([each == model for each in models], np.bool_)
        middle = np.median(values[of_model])
        if of_model.sum() > 1 and middle > 0:
            ratios[of_model] = values[of_model] / middle
    return ratios


def curve(service: Service, call: Call) -> Reply:
    """``/page/curve``: one metric over a time range, as lines of chosen devices and a band of all other series."""
    metric, span = _metric(call), _span(call)
    devices = [_device(text) for text in call.parameters.get("device", ())][:MAX_LINES]
    query = _sub_query(metric, "none", f"{step(span, call.number('points', 300))}s-avg")
    answers = service.source.evaluate(query, span).answers
    series = [TimeSeries(each.metric, each.tags, each.times_us, each.values) for each in answers if len(each.times_us)]
    lines = [[each for each in series if _is_of(each, device)] for device in devices]
    others = peers_of(series, [each for line in lines for each in line])
    times = np.unique(np.concatenate([each.times_us for each in series])) if series else np.zeros(0, np.int64)
    names = ("p05", "p50", "p95") if metric in CATALOGUE or _is_probe(metric) else ("min", "avg", "max")
    low, middle, high = (_numbers(_on_grid(_merged(query, name, span, others), times)) for name in names)
    drawn = [_merged(query, "avg", span, line) for line in lines]
    return Reply(
        {
            "unit": _unit(metric),
            "n_series": len(others),
            "times": (times // _MILLISECOND_US).tolist(),
            "low": low,
            "middle": middle,
            "high": high,
            "lines": [
                {"host": host, "gpu": gpu, "values": _numbers(_on_grid(line, times))}
                for (host, gpu), line in zip(devices, drawn, strict=True)
            ],
        }
    )


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
    body = {"metric": metric, "aggregator": aggregator, "downsample": downsample}
    return sub_query_from_json(body, 0)


def _metrics(keys: Iterable[SeriesKey]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for metric, tags in keys:
        if metric == EVENTS:
            continue
        has_devices = {"host", "gpu"} <= dict(tags).keys()
        is_probe = has_devices and _is_probe(metric)
        kind = "program" if metric not in CATALOGUE and not is_probe else "device" if has_devices else "node"
        about = {"name": metric, "kind": kind, "unit": _unit(metric), "has_devices": has_devices, "is_probe": is_probe}
        found[metric] = about
    return [found[name] for name in sorted(found)][:MAX_METRICS]


def _is_probe(metric: str) -> bool:
    return metric not in CATALOGUE and _PROBE.search(metric) is not None


def _unit(metric: str) -> str:
    known = CATALOGUE.get(metric)
    if known is not None:
        return known.unit
    return "s" if _is_probe(metric) else ""


def _event(event: Event) -> Mapping[str, Any]:
    time = event.time_us // _MILLISECOND_US
    return {"time": time, "kind": event.kind, "text": event.text, "host": event.host, "gpu": event.gpu}


def _numbers(values: Floats) -> list[float | None]:
    """Return numbers of five digits, and None for what is not finite: JSON has no NaN."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part)


def _metric(call: Call) -> str:
    name = call.one("metric")
    if not name or "|" in name:
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
    text = call.one(name)
    if not text.isascii() or not text.isdigit() or len(text) > 14:
        raise RequestError(400, f"{name} is {text[:40]!r}: it must be a Unix time in milliseconds")
    return int(text) * _MILLISECOND_US


PAGE_ROUTES: Mapping[str, tuple[tuple[str, ...], Handler]] = {
    "/": (("GET",), page),
    "/page/job": (("GET",), job),
    "/page/map": (("GET",), device_map),
    "/page/curve": (("GET",), curve),
}
