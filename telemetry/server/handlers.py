"""The handlers of the API's paths: plain functions of a request, which run in threads."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from starlette.responses import Response

from laggard.kvstore.series.sample_store import Newest, SeriesKey
from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.error_lines import ErrorLine
from laggard.telemetry.errors import BadQueryError, QueryTooLargeError, RequestError
from laggard.telemetry.events import Event, keys_of_events, series_of_events
from laggard.telemetry.nodes.sources import Found, Listed, Source
from laggard.telemetry.query import SubQuery, query_from_json
from laggard.telemetry.query.aggregators import AGGREGATORS
from laggard.telemetry.query.downsampling import buckets
from laggard.telemetry.query.engine import MAX_ANSWER_POINTS, Answer, Span, evaluate
from laggard.telemetry.query.filters import FILTER_TYPES
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US, now_us
from laggard.telemetry.sending.batches import Batch
from laggard.telemetry.server.answers import JSON, METRICS, JsonResponse, answers_to_json, metrics_to_text, naming
from laggard.telemetry.server.lookup import DEFAULT_LIMIT, lookup, parse_lookup, suggest
from laggard.telemetry.server.put import Point, batch_of, point_from_json, require_in_job
from laggard.telemetry.server.requests import Call

VERSION = metadata.version("laggard")
MAX_POINTS_A_PUT = 20_000
MAX_ANSWER_SERIES = 2_000
# Nodes read every half second by default; a series without a newer sample than this has ended.
STALE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reach:
    """What the telemetry is of, and how far it reaches."""

    name: str
    began_us: int  # Unix times of the job's start and of the newest samples, in microseconds
    newest_us: int
    ended_us: int | None = None  # when it ended; None while the job runs
    nodes: Collection[str] = ()  # the nodes in use, and those of them that do not answer; both empty if unknown
    missing: Collection[str] = ()
    # All devices that the job has had, those of the reserve and of excluded nodes too; empty if unknown
    devices: Collection[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """What the handlers need."""

    reach: Callable[[], Reach]  # returns how far the telemetry reaches
    source: Source  # answers queries
    # Returns the job's events in a time range (Unix times in microseconds, both ends included), in order
    events: Callable[[int, int], list[Event]]
    put: Callable[[Batch], bool] | None  # stores samples and returns whether that worked; None if nothing can be stored
    token: str = field(repr=False)  # required of a request that changes something
    reading_needs_token: bool  # whether the token is required of every other request too
    # Names by which clients may reach the server, beside its addresses and `localhost`, in lower case
    names: frozenset[str]
    health: Callable[[], Mapping[str, Any]]  # returns the content of `/health`
    error_lines: Callable[[int], list[ErrorLine]]  # returns what was written to standard error from a time on
    own_metrics: Callable[[], list[Newest]]  # returns what the server knows of the job itself, for `/metrics`
    began_s: float = 0.0  # when the job began, as its processes are told; 0 if that is not known


Handler = Callable[[Service, Call], Response]


def query(service: Service, call: Call) -> Response:
    """``/api/query``: points."""
    now = now_us()
    arrays = "arrays" in call.parameters and call.parameters["arrays"].lower() != "false"
    asked = query_from_json(call.json(), now, arrays=arrays)
    span = Span(asked.start_us, asked.end_us, asked.milliseconds)
    events = service.events(asked.start_us, asked.end_us)
    answers: list[tuple[SubQuery, Answer]] = []
    missing: set[str] = set()
    approximate: list[str] = []
    for sub_query in asked.queries:
        call.check_time()
        found = _evaluate(service, sub_query, span, events)
        answers += [(sub_query, answer) for answer in found.answers]
        if sum(len(answer.times_us) for _, answer in answers) > MAX_ANSWER_POINTS:
            raise QueryTooLargeError(f"more than {MAX_ANSWER_POINTS:,} points: filter, or downsample further")
        missing.update(found.missing)
        if found.approximate_us:
            approximate.append(f"{sub_query.index}: averages of {found.approximate_us // SECOND_US} s")
    shown = answers[:MAX_ANSWER_SERIES]
    headers = naming(missing)
    if approximate:
        headers["X-Laggard-Approximate"] = ", ".join(approximate)
    if len(shown) < len(answers):
        headers["X-Laggard-Series-Left-Out"] = str(len(answers) - len(shown))
    return Response(answers_to_json(asked, shown, events), headers=headers, media_type=JSON)


def _evaluate(service: Service, sub_query: SubQuery, span: Span, events: list[Event]) -> Found:
    if sub_query.downsample is not None:
        buckets(sub_query.downsample, span.start_us, span.end_us)  # refuses too many buckets, even if there are no data
    if sub_query.metric == EVENTS:
        return Found(evaluate(sub_query, span, series_of_events(events)))
    return service.source.evaluate(sub_query, span)


def suggestions(service: Service, call: Call) -> Response:
    """``/api/suggest``: names that begin with a prefix."""
    kind = call.parameters.get("type", "")
    found = service.source.series_keys()
    keys = [*found.items, *([(EVENTS, ())] if kind == "metrics" else [])]
    names = suggest(keys, kind, call.parameters.get("q", ""), call.number("max", 0))
    return JsonResponse(names, headers=naming(found.missing))


def lookups(service: Service, call: Call) -> Response:
    """``/api/search/lookup``: series by metric and tags."""
    metric, pairs = parse_lookup(call.parameters.get("m", ""))
    name = "" if metric == "*" else metric
    found: Listed[SeriesKey] = Listed([]) if name == EVENTS else service.source.series_keys(name)
    events = service.events(0, ALL_TIME_US) if name in {"", EVENTS} else []
    keys = [*found.items, *keys_of_events(events)]
    series = lookup(keys, name, pairs, call.number("limit", DEFAULT_LIMIT))
    return JsonResponse(series, headers=naming(found.missing))


def aggregators(_: Service, __: Call) -> Response:
    """``/api/aggregators``: the names of the aggregators."""
    return JsonResponse(list(AGGREGATORS))


def filters(_: Service, __: Call) -> Response:
    """``/api/config/filters``: the filter types."""
    return JsonResponse({name: {"description": meaning} for name, meaning in FILTER_TYPES.items()})


def about(_: Service, __: Call) -> Response:
    """``/api/version``: the version of OpenTSDB's API, and laggard's."""
    return JsonResponse({"version": "2.4.0", "short_revision": "laggard", "repo": f"laggard {VERSION}"})


def put(service: Service, call: Call) -> Response:
    """``/api/put``: store samples. Valid ones are stored even if others are refused."""
    if service.put is None:
        raise RequestError(403, "a dump is read-only: no samples can be added")
    body = call.json()
    listed = body if isinstance(body, list) else [body]
    if not listed or len(listed) > MAX_POINTS_A_PUT:
        raise RequestError(413 if listed else 400, f"give 1 to {MAX_POINTS_A_PUT} samples")
    points, errors = _read_points(listed, service.began_s)
    batch = batch_of(points)
    if batch and not service.put(batch):
        raise RequestError(503, "the node's store is not accepting samples: try again")
    content = {"success": len(points), "failed": len(errors), "errors": errors}
    return JsonResponse(content, 400 if errors else 200)


def _read_points(listed: list[Any], began_s: float) -> tuple[list[Point], list[dict[str, Any]]]:
    points, errors = [], []
    for each in listed:
        try:
            points.append(require_in_job(point_from_json(each), began_s))
        except BadQueryError as error:
            errors.append({"datapoint": each, "error": str(error)})
    return points, errors


def metrics(service: Service, _: Call) -> Response:
    """``/metrics``: the newest values, for Prometheus."""
    recent_us = now_us() - round(STALE_S * SECOND_US)
    found = service.source.newest()
    newest = [each for each in found.items if each.time_us >= recent_us]
    text = metrics_to_text([*newest, *service.own_metrics()])
    return Response(text, headers=naming(found.missing), media_type=METRICS)


def health(service: Service, _: Call) -> Response:
    """``/health``: whether the server works, and which nodes answer."""
    return JsonResponse(service.health())


ROUTES: Mapping[str, tuple[tuple[str, ...], Handler]] = {
    "/api/query": (("POST",), query),
    "/api/suggest": (("GET",), suggestions),
    "/api/search/lookup": (("GET",), lookups),
    "/api/aggregators": (("GET",), aggregators),
    "/api/config/filters": (("GET",), filters),
    "/api/version": (("GET",), about),
    "/api/put": (("POST",), put),
    "/metrics": (("GET",), metrics),
    "/health": (("GET",), health),
}


def authorize(service: Service, headers: Mapping[str, str]) -> None:
    """Refuse a request without the token, which may be a bearer token, a Basic password, or in our own header."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    shown = headers.get("x-laggard-token", "")
    if scheme.lower() == "bearer":
        shown = credentials.strip()
    elif scheme.lower() == "basic":
        try:
            shown = base64.b64decode(credentials, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            shown = ""
    if not secrets.compare_digest(shown.encode("utf-8", "surrogateescape"), service.token.encode()):
        raise RequestError(401, "this needs the token in the file telemetry-token")
