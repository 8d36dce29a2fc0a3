"""The page's handlers: the document at ``/``, and what it shows: the job, a map of devices, links, and curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.datastructures import QueryParams
from starlette.responses import Response

from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.curves import Asked, ask, ask_all, curve_by, curve_of, newest_of, step
from laggard.telemetry.errors import BadQueryError, RequestError
from laggard.telemetry.links import links_between
from laggard.telemetry.page import live_document
from laggard.telemetry.page.content import (
    MILLISECOND_US,
    accused_nodes,
    accused_of,
    events_of,
    is_probe,
    launches_of,
    lines_of,
    map_of,
    metrics_of,
)
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.server.answers import JsonResponse, naming
from laggard.telemetry.server.handlers import Handler, Service
from laggard.telemetry.server.requests import Call, error_body

MAX_LINES, MAX_TAGS, MAX_CURVES = 12, 4, 400
# Rollups have buckets of ten seconds, and a detector that probes rarely does so once a minute.
_NEWEST_STEP_S, _NEWEST_WITHIN_S = 10, 130


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
    events = service.events(0, span.end_us)
    reach, known = service.reach(), service.source.series_keys()
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
            "missing": sorted({*reach.missing, *known.missing}),
            "launches": launches_of(events),
            "metrics": metrics_of(known.items),
            "n_metrics": len({metric for metric, _ in known.items} - {EVENTS}),
            **accused_of(events),
            **events_of(shown),
        },
        headers=naming(known.missing),
    )


def error_lines(service: Service, call: Call) -> Response:
    """``/page/lines``: what the program wrote to standard error in a time range; it needs the token."""
    span = _span(call)
    return JsonResponse(lines_of(line for line in service.error_lines(span.start_us) if line.time_us <= span.end_us))


def device_map(service: Service, call: Call) -> Response:
    """``/page/map``: the newest reading of every device (or node) before a time, and its ratio to its model's."""
    metric, end_us = _metric(call), _milliseconds(call, "end")
    span = Span(end_us - _NEWEST_WITHIN_S * SECOND_US, end_us)
    asked = ask(service.source, metric, span, _NEWEST_STEP_S, "last")
    newest = newest_of(asked)
    found = map_of(metric, newest, _known_devices(service, metric, newest))
    return JsonResponse(found, headers=naming(asked.found.missing))


def links(service: Service, call: Call) -> Response:
    """``/page/links``: the matrix of links at the end of a launch, or of all that there is; null if there is none."""
    reach = service.reach()
    end_us = reach.newest_us if reach.ended_us is None else reach.ended_us
    number, span = call.parameters.get("launch"), Span(reach.began_us, end_us)
    events, nodes = service.events(0, end_us), ()
    if number:
        launch = _launch(number, launches_of(events))
        ended_us = end_us if launch["ended"] is None else launch["ended"] * MILLISECOND_US
        span, nodes = Span(launch["began"] * MILLISECOND_US, ended_us), launch["nodes"]
    found, missing = links_between(service.source, span, nodes)
    body = {"links": None if found is None else found.to_json(accused_nodes(events))}
    return JsonResponse(body, headers=naming(missing))


def curves(service: Service, call: Call) -> Response:
    """``/page/curves``: metrics over time; the body lists the parameters of each curve, as in a URL.

    A curve has lines by some tags, or those of chosen devices and a band of all others. One that is refused has an
    ``error`` instead.
    """
    texts = call.json()
    if not isinstance(texts, list) or len(texts) > MAX_CURVES or not all(isinstance(text, str) for text in texts):
        raise RequestError(400, f"the body must be a list of the parameters of at most {MAX_CURVES} curves")
    calls = [replace(call, parameters=QueryParams(text)) for text in texts]
    missing: set[str] = set()
    try:
        found = _curves(service, calls, missing)
    except BadQueryError:
        found = [_curve_or_error(service, each, missing) for each in calls]
    return JsonResponse(found, headers=naming(missing))


def _curve_or_error(service: Service, call: Call, missing: set[str]) -> dict[str, Any]:
    call.check_time()
    try:
        return _curves(service, [call], missing)[0]
    except BadQueryError as error:
        return error_body(400, str(error))


def _curves(service: Service, calls: Sequence[Call], missing: set[str]) -> list[dict[str, Any]]:
    """Return the curves, and note in ``missing`` the nodes that do not answer."""
    spans = [_span(call) for call in calls]
    steps = [step(span, call.number("points", 300)) for span, call in zip(spans, calls, strict=True)]
    found = ask_all(service.source, list(zip(map(_metric, calls), spans, steps, strict=True)))
    missing.update(*(each.found.missing for each in found))
    return [_curve(asked, call) for asked, call in zip(found, calls, strict=True)]


def _curve(asked: Asked, call: Call) -> dict[str, Any]:
    by = call.parameters.getlist("by")[:MAX_TAGS]
    devices = [_device(text) for text in call.parameters.getlist("device")][:MAX_LINES]
    return curve_by(asked, by) if by else curve_of(asked, drawn=devices, apart=devices)


def _known_devices(service: Service, metric: str, newest: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
    """Return the devices that a metric's map has though they may have no newest reading; none if it is of nodes."""
    if devices := service.reach().devices:
        return devices if is_probe(metric) or any(gpu for _, gpu in newest) else ()
    tags = [dict(tags) for _, tags in service.source.series_keys(metric).items]  # a dump does not say what the job had
    return {(each["host"], each["gpu"]) for each in tags if {"host", "gpu"} <= each.keys()}


def _launch(number: str, launches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = [each for each in launches if str(each["number"]) == number]
    if not found:
        raise RequestError(404, f"launch {number[:20]!r} is not known: the page lists those that are")
    return found[-1]


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
    "/page/lines": (("GET",), error_lines),
    "/page/map": (("GET",), device_map),
    "/page/curves": (("POST",), curves),
    "/page/links": (("GET",), links),
}
