"""The handlers of the API's paths: plain functions of a request, which run in threads."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import metadata
from typing import Any

from laggard.kvstore.series.sample_store import Newest, SeriesKey
from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.errors import BadQueryError, PointError, QueryTooLargeError, RequestError
from laggard.telemetry.events import Event, EventSource, keys_of_events, series_of_events
from laggard.telemetry.nodes.sources import Found, Source
from laggard.telemetry.query import SubQuery, query_from_json, query_from_url
from laggard.telemetry.query.aggregators import AGGREGATORS
from laggard.telemetry.query.downsampling import buckets
from laggard.telemetry.query.engine import MAX_ANSWER_POINTS, Answer, Span, evaluate
from laggard.telemetry.query.filters import FILTER_TYPES
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US, parse_time
from laggard.telemetry.sending.batches import Batch
from laggard.telemetry.server.answers import CLASSIC, OPEN_METRICS, annotation, answers_to_json, metrics_to_text
from laggard.telemetry.server.lookup import DEFAULT_LIMIT, lookup, parse_lookup, suggest
from laggard.telemetry.server.put import Point, batch_of, point_from_json, require_recent
from laggard.telemetry.server.requests import Call

__all__ = ["JSON", "ROUTES", "Handler", "Reach", "Reply", "Service", "authorize", "health", "put", "query"]

JSON = "application/json; charset=UTF-8"
VERSION = metadata.version("laggard")
MAX_POINTS_A_PUT = 20_000
# Nodes read every half second by default; a series without a newer sample than this has ended.
STALE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reach:
    """What the telemetry is of, and how far it reaches.

    Attributes
    ----------
    name
        Name of the job, or of the dumps.
    began_us, newest_us
        Unix times of the job's start and of the newest samples, in microseconds.
    ended_us
        When it ended; None while the job runs.
    nodes, missing
        The nodes in use, and those of them that do not answer; both empty if unknown.
    devices
        All devices that the job has had, those of the reserve and of excluded nodes too; empty if unknown.
    """

    name: str
    began_us: int
    newest_us: int
    ended_us: int | None = None
    nodes: Collection[str] = ()
    missing: Collection[str] = ()
    devices: Collection[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """What the handlers need.

    Attributes
    ----------
    reach
        Returns how far the telemetry reaches.
    source
        Answers queries.
    events
        The job's events.
    put
        Stores samples and returns whether that worked; None if nothing can be stored.
    window_s
        How long nodes keep samples, in seconds; older ones are not stored.
    room
        Returns how many more series can be stored.
    add_event
        Stores an event; None if nothing can be stored.
    token
        Required of a request that changes something.
    reading_needs_token
        Whether the token is required of every other request too.
    max_series, unknown_is_error
        From the settings.
    names
        Names by which clients may reach the server, beside its addresses and ``localhost``, in lower case.
    health
        Returns the content of ``/health``.
    own_metrics
        Returns what the server knows of the job itself, for ``/metrics``.
    """

    reach: Callable[[], Reach]
    source: Source
    events: EventSource
    put: Callable[[Batch], bool] | None
    window_s: float
    room: Callable[[], int]
    add_event: Callable[[Event], None] | None
    token: str = field(repr=False)
    reading_needs_token: bool
    max_series: int
    unknown_is_error: bool
    names: frozenset[str]
    health: Callable[[], Mapping[str, Any]]
    own_metrics: Callable[[], list[Newest]]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a JSON value, bytes of ``text_type``, or None for an empty body."""

    content: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    text_type: str = ""


Handler = Callable[[Service, Call], Reply]


def query(service: Service, call: Call) -> Reply:
    """``/api/query``: points."""
    now_us = _now_us()
    if call.method == "POST":
        arrays = "arrays" in call.parameters and call.one("arrays").lower() != "false"
        asked = query_from_json(call.json(), now_us, arrays=arrays)
    else:
        asked = query_from_url(call.parameters, now_us)
    span = Span(asked.start_us, asked.end_us, asked.milliseconds)
    # Events are read once, while the nodes work on the first sub-query.
    events = cache(partial(service.events.between, asked.start_us, asked.end_us)) if asked.annotations else list[Event]
    answers: list[tuple[SubQuery, Answer]] = []
    missing: set[str] = set()
    approximate: list[str] = []
    for sub_query in asked.queries:
        call.check_time()
        found = _evaluate(service, sub_query, span, events)
        if service.unknown_is_error and not found.answers:
            _require_known(service, sub_query)
        answers += [(sub_query, answer) for answer in found.answers]
        if sum(len(answer.times_us) for _, answer in answers) > MAX_ANSWER_POINTS:
            raise QueryTooLargeError(f"more than {MAX_ANSWER_POINTS:,} points: filter, or downsample further")
        missing.update(found.missing)
        if found.approximate_us:
            approximate.append(f"{sub_query.index}: averages of {found.approximate_us // SECOND_US} s")
    shown = answers[: service.max_series]
    headers = {"X-Laggard-Missing-Nodes": ",".join(sorted(missing))} if missing else {}
    if approximate:
        headers["X-Laggard-Approximate"] = ", ".join(approximate)
    if len(shown) < len(answers):
        headers["X-Laggard-Series-Left-Out"] = str(len(answers) - len(shown))
    return Reply(answers_to_json(asked, shown, events()), headers=headers, text_type=JSON)


def _evaluate(service: Service, sub_query: SubQuery, span: Span, events: Callable[[], list[Event]]) -> Found:
    if sub_query.downsample is not None:
        buckets(sub_query.downsample, span.start_us, span.end_us)  # refuses too many buckets, even if there are no data
    if sub_query.metric == EVENTS:
        return Found(evaluate(sub_query, span, series_of_events(events())))
    return service.source.evaluate(sub_query, span, events)


def _require_known(service: Service, sub_query: SubQuery) -> None:
    for metric in sub_query.metrics:
        if not service.source.series_keys(metric):
            raise BadQueryError(f"No such name for 'metrics': {metric[:80]!r}")


def last(service: Service, call: Call) -> Reply:
    """``/api/query/last``: the newest point of each series."""
    names = [call.one("timeseries")] if call.method == "GET" else _metrics_of_last(call.json())
    wanted = [parse_lookup(name) for name in names if name]
    if not wanted:
        raise RequestError(400, "missing 'timeseries': name a metric")
    found = [
        {"metric": each.metric, "tags": each.tags, "timestamp": each.time_us // 1000, "value": str(each.value)}
        for each in service.source.newest()
        if any(lookup([_key(each.metric, each.tags)], metric, pairs, 0)["results"] for metric, pairs in wanted)
    ]
    return Reply(found)


def _metrics_of_last(body: Any) -> list[str]:
    if not isinstance(body, dict) or not isinstance(body.get("queries"), list):
        raise RequestError(400, "missing 'queries'")
    return [str(each.get("metric", "")) for each in body["queries"] if isinstance(each, dict)]


def _key(metric: str, tags: Mapping[str, str]) -> SeriesKey:
    return metric, tuple(sorted(tags.items()))


def suggestions(service: Service, call: Call) -> Reply:
    """``/api/suggest``: names that begin with a prefix."""
    if call.method == "POST":
        body = _object(call.json())
        kind, prefix, limit = body.get("type", ""), body.get("q", ""), body.get("max", 0)
        if not isinstance(kind, str) or not isinstance(prefix, str) or not isinstance(limit, int):
            raise RequestError(400, "type and q must be text, and max an integer")
    else:
        kind, prefix, limit = call.one("type"), call.one("q"), call.number("max", 0)
    keys = service.source.series_keys()
    if kind == "metrics":
        keys = [*keys, (EVENTS, ())]
    return Reply(suggest(keys, kind, prefix, limit))


def lookups(service: Service, call: Call) -> Reply:
    """``/api/search/lookup``: series by metric and tags."""
    if call.method == "POST":
        body = _object(call.json())
        metric, limit, tags = body.get("metric") or "", body.get("limit", DEFAULT_LIMIT), body.get("tags") or []
        sound = isinstance(metric, str) and isinstance(limit, int) and isinstance(tags, list)
        if not sound or not all(isinstance(tag, dict) for tag in tags):
            raise RequestError(400, "metric must be text, limit an integer and tags a list of objects")
        pairs = [(str(tag.get("key") or "*"), str(tag.get("value") or "*")) for tag in tags]
    else:
        metric, pairs = parse_lookup(call.one("m"))
        limit = call.number("limit", DEFAULT_LIMIT)
    name = "" if metric == "*" else metric
    keys = [] if name == EVENTS else service.source.series_keys(name)
    events = service.events.between(0, ALL_TIME_US) if name in {"", EVENTS} else []
    return Reply(lookup([*keys, *keys_of_events(events)], name, pairs, limit))


def aggregators(_: Service, __: Call) -> Reply:
    """``/api/aggregators``: the names of the aggregators."""
    return Reply(list(AGGREGATORS))


def filters(_: Service, __: Call) -> Reply:
    """``/api/config/filters``: the filter types, with examples."""
    return Reply(FILTER_TYPES)


def config(service: Service, _: Call) -> Reply:
    """``/api/config``: the settings that clients ask for."""
    return Reply({"tsd.mode": "ro" if service.put is None else "rw", "tsd.http.query.allow_delete": "false"})


def about(_: Service, __: Call) -> Reply:
    """``/api/version``: the version of OpenTSDB's API, and laggard's."""
    return Reply({"version": "2.4.0", "short_revision": "laggard", "repo": f"laggard {VERSION}"})


def stats(service: Service, _: Call) -> Reply:
    """``/api/stats``: the number of series."""
    count = len(service.source.series_keys())
    point = {"metric": "laggard.series", "timestamp": _now_us() // SECOND_US, "value": str(count), "tags": {}}
    return Reply([point])


def put(service: Service, call: Call) -> Reply:
    """``/api/put``: store samples. Valid ones are stored even if others are refused."""
    if service.put is None:
        raise RequestError(403, "a dump is read-only: no samples can be added")
    body = call.json()
    listed = body if isinstance(body, list) else [body]
    if not listed or len(listed) > MAX_POINTS_A_PUT:
        raise RequestError(413 if listed else 400, f"give 1 to {MAX_POINTS_A_PUT} samples")
    points, errors = _read_points(listed, service.window_s)
    batch = batch_of(points)
    _require_room(service, batch)
    if batch and not service.put(batch):
        raise RequestError(503, "the node's store is not accepting samples: try again")
    if not call.parameters.keys() & {"details", "summary"}:
        if errors:
            raise RequestError(400, "one or more samples were refused", errors[0]["error"])
        return Reply(None, 204)
    content: dict[str, Any] = {"success": len(points), "failed": len(errors)}
    if "details" in call.parameters:
        content["errors"] = errors
    return Reply(content, 400 if errors else 200)


def _require_room(service: Service, batch: Batch) -> None:
    room = service.room() if batch else 0
    if len(batch) > room and (new := len(batch.keys() - set(service.source.series_keys()))) > room:
        raise RequestError(413, f"{new} new series exceed the node's store, which has room for {room}: use fewer tags")


def _read_points(listed: list[Any], window_s: float) -> tuple[list[Point], list[dict[str, Any]]]:
    points, errors = [], []
    for each in listed:
        try:
            points.append(require_recent(point_from_json(each), window_s))
        except PointError as error:
            errors.append({"datapoint": each, "error": str(error)})
    return points, errors


def notes(service: Service, call: Call) -> Reply:
    """``/api/annotation``: return the events in a time range, or add one."""
    if call.method == "GET":
        start_us = parse_time(call.one("start_time", "1h-ago"), _now_us())
        end_us = parse_time(call.one("end_time"), _now_us()) if call.one("end_time") else ALL_TIME_US
        return Reply([annotation(event) for event in service.events.between(start_us, end_us)])
    authorize(service, call.headers)
    if service.add_event is None:
        raise RequestError(403, "a dump is read-only: no annotations can be added")
    body = _object(call.json())
    text, start = body.get("description"), body.get("startTime", _now_us() // SECOND_US)
    if not isinstance(text, str) or not text:
        raise RequestError(400, "missing 'description'")
    event = Event(parse_time(start, _now_us()), "note", text)
    service.add_event(event)
    return Reply(annotation(event))


def metrics(service: Service, call: Call) -> Reply:
    """``/metrics``: the newest values, for Prometheus."""
    classic = "application/openmetrics-text" not in call.headers.get("accept", "")
    recent_us = _now_us() - round(STALE_S * SECOND_US)
    newest = [each for each in service.source.newest() if each.time_us >= recent_us]
    return Reply(
        metrics_to_text([*newest, *service.own_metrics()], classic=classic).encode(),
        text_type=CLASSIC if classic else OPEN_METRICS,
    )


def health(service: Service, _: Call) -> Reply:
    """``/health``: whether the server works, and which nodes answer."""
    return Reply(service.health())


ROUTES: Mapping[str, tuple[tuple[str, ...], Handler]] = {
    "/api/query": (("GET", "POST"), query),
    "/api/query/last": (("GET", "POST"), last),
    "/api/suggest": (("GET", "POST"), suggestions),
    "/api/search/lookup": (("GET", "POST"), lookups),
    "/api/aggregators": (("GET", "POST"), aggregators),
    "/api/config/filters": (("GET", "POST"), filters),
    "/api/config": (("GET", "POST"), config),
    "/api/version": (("GET", "POST"), about),
    "/api/stats": (("GET", "POST"), stats),
    "/api/put": (("POST",), put),
    "/api/annotation": (("GET", "POST"), notes),
    "/metrics": (("GET",), metrics),
    "/health": (("GET",), health),
}


def authorize(service: Service, headers: Mapping[str, str]) -> None:
    """Refuse a request without the token, which may be a bearer token, a Basic password, or in our own header.

    Raises
    ------
    RequestError
        With status 401.
    """
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


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    return body


def _now_us() -> int:
    return round(time.time() * SECOND_US)
