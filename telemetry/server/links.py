"""The page's handler of links: who sent to whom how fast at the end of a launch, or now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from laggard.telemetry.errors import RequestError
from laggard.telemetry.links import links_between
from laggard.telemetry.page.content import MILLISECOND_US, accused_nodes, launches_of
from laggard.telemetry.query.engine import Span
from laggard.telemetry.server.answers import JsonResponse, naming
from laggard.telemetry.server.handlers import Service
from laggard.telemetry.server.requests import Call


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


def _launch(number: str, launches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = [each for each in launches if str(each["number"]) == number]
    if not found:
        raise RequestError(404, f"launch {number[:20]!r} is not known: the page lists those that are")
    return found[-1]
