"""The web application: runs handlers in threads, limits size and time, and answers with OpenTSDB's error bodies."""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import redis
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from laggard.telemetry.errors import BadQueryError, NoAnswerError, NodeError, QueryTooLargeError, RequestError
from laggard.telemetry.server.answers import JsonResponse
from laggard.telemetry.server.handlers import ROUTES, Handler, Service, authorize, health, put, query
from laggard.telemetry.server.page import PAGE_ROUTES, error_lines, page
from laggard.telemetry.server.requests import (
    ANSWER_DEADLINE_S,
    MAX_BODY_BYTES,
    MAX_PUT_BYTES,
    Call,
    error_body,
    not_in_time,
    read_call,
    require_own_place,
)

_log = logging.getLogger("laggard.telemetry")

QUERIES_AT_ONCE = 6
# A separate limit, so that many large queries do not delay a small request.
OTHERS_AT_ONCE = 4
_GZIP_ABOVE_BYTES = 1000
# They say nothing of the job but how its nodes' telemetry is; the page asks for the token.
_OPEN = (health, page)
# The program's output may hold what others must not read.
_CLOSED = (put, error_lines)
# Half of the default interval between readings: within it the same query has the same answer.
ANSWER_LIFE_S = 0.25
MAX_RECENT_BYTES = 32 << 20
# The first that fits counts.
_STATUSES: Mapping[type[Exception], int] = {
    QueryTooLargeError: 413,
    NodeError: 413,
    BadQueryError: 400,
    NoAnswerError: 503,
    redis.RedisError: 503,
}


class RecentAnswers:
    """A short-lived cache of answers to queries, for dashboards that several people look at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # returns monotonic time in seconds
        self._answers: dict[Hashable, tuple[float, Response]] = {}

    def get(self, key: Hashable) -> Response | None:
        """Return the answer to the same query, if it is recent enough."""
        given_s, answer = self._answers.get(key, (-math.inf, None))
        return answer if self._clock() - given_s < ANSWER_LIFE_S else None

    def put(self, key: Hashable, answer: Response) -> None:
        """Keep an answer for a short time."""
        now_s = self._clock()
        self._answers = {k: each for k, each in self._answers.items() if now_s - each[0] < ANSWER_LIFE_S}
        if sum(len(each.body) for _, each in self._answers.values()) + len(answer.body) <= MAX_RECENT_BYTES:
            self._answers[key] = now_s, answer


def make_app(service: Service) -> Starlette:
    """Return the application."""
    queries, others = anyio.CapacityLimiter(QUERIES_AT_ONCE), anyio.CapacityLimiter(OTHERS_AT_ONCE)
    recent = RecentAnswers()
    routes = []
    for path, (methods, handler) in {**ROUTES, **PAGE_ROUTES}.items():
        endpoint = partial(_answer, service, handler, queries if handler is query else others, recent)
        routes.append(Route(path, endpoint, methods=list(methods)))
    handlers: Any = {
        **dict.fromkeys(_STATUSES, _on_failure),
        RequestError: _on_problem,
        HTTPException: _on_http_exception,
        Exception: _on_bug,
    }
    own = Middleware(_OwnPlaceOnly, names=service.names)
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[own])


class _OwnPlaceOnly:
    """Refuses requests from elsewhere before anything else is looked at, whatever their path and method."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            require_own_place(Headers(scope=scope), scope["path"], self._names)
        except RequestError as problem:
            await _refusal(problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _answer(
    service: Service, handler: Handler, limiter: anyio.CapacityLimiter, recent: RecentAnswers, request: Request
) -> Response:
    # Before reading a body, which may be large.
    if handler in _CLOSED or (service.reading_needs_token and handler not in _OPEN):
        authorize(service, request.headers)
    call = await read_call(request, MAX_PUT_BYTES if handler is put else MAX_BODY_BYTES)
    question = (request.scope["path"], request.scope["query_string"], call.body, _wants_gzip(call))
    if handler is query and (known := recent.get(question)) is not None:
        return known
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            answer = await anyio.to_thread.run_sync(
                _respond, service, handler, call, limiter=limiter, abandon_on_cancel=True
            )
    except TimeoutError:
        raise not_in_time() from None
    if handler is query:
        recent.put(question, answer)
    return answer


def _wants_gzip(call: Call) -> bool:
    return "gzip" in call.headers.get("accept-encoding", "").lower()


def _respond(service: Service, handler: Handler, call: Call) -> Response:
    answer = handler(service, call)
    if _wants_gzip(call) and len(answer.body) > _GZIP_ABOVE_BYTES:
        answer.body = gzip.compress(answer.body, compresslevel=1)
        answer.headers.update({"content-encoding": "gzip", "content-length": str(len(answer.body))})
    return answer


def _refusal(problem: RequestError) -> Response:
    return JsonResponse(error_body(problem.status, problem.message), problem.status)


async def _on_problem(_: Request, problem: RequestError) -> Response:
    return _refusal(problem)


async def _on_failure(_: Request, error: Exception) -> Response:
    status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
    words = f"the job's state server does not answer: {error}" if isinstance(error, redis.RedisError) else str(error)
    return JsonResponse(error_body(status, words), status)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    words = {404: "Endpoint not found", 405: f"Method not allowed: {request.method}"}
    message = words.get(error.status_code, str(error.detail))
    return JsonResponse(error_body(error.status_code, message), error.status_code, error.headers)


async def _on_bug(request: Request, error: Exception) -> Response:
    _log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return JsonResponse(error_body(500, "internal error: see laggard's log"), 500)
