"""Fuzzing of the telemetry server: hypothesis generates bad requests, and every answer is checked.

Used by ``python -m benchmarks telemetry`` with many examples and by the tests with few.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = ["Answers", "BadAnswerError", "fuzz"]

DEADLINE_S = 30.0

# Each list has valid, almost valid and malicious values.
TEXTS = ["", "-", "*", "a|b", "((((", ".*.*.*.*", "(a+)+$", "é", "\x00", "\ud800", "power", "node1", "NaN", "x" * 3000]
NUMBERS = [0, -1, 1, 2**31, 2**53, 2**63, 10**30, 1e308, -0.5, 0.1]
TIMES = [
    "1h-ago",
    "now",
    "999999y-ago",
    "2026/01/01",
    "9999/12/31-23:59:59",
    "1ms",
    -5,
    0,
    1,
    4294967296,
    10**15,
    1e300,
]
AGGREGATORS = ["sum", "avg", "none", "p999", "median", "dev", "", "undefined", "magic"]
THINNING = [
    "",
    "1m-avg",
    "1ms-sum-nan",
    "1dc-p90",
    "1nc-last-zero",
    "1m-avg-",
    "10s-none",
    "1-avg",
    "1s-1-2-3",
]
FILTERS = ["wildcard", "iwildcard", "literal_or", "not_literal_or", "regexp", "magic", ""]
METRICS = ["power", "many", "laggard.events", "power|many", "nobody", "", "|", "m" * 2000]
PATHS = ["/api/query", "/api/suggest", "/api/search/lookup", "/api/put"]
PATHS += [
    "/api/config/filters",
    "/api/aggregators",
    "/metrics",
    "/health",
    "/nowhere",
    "/api/%2e%2e/x",
]
NAMES = ["start", "end", "m", "q", "type", "max", "limit", "arrays", "details"]
METHODS = [*["GET"] * 6, *["POST"] * 12, "PUT", "DELETE", "HEAD", "PATCH"]
HEADERS = [{}, {}, {"Content-Encoding": "gzip"}, {"Content-Encoding": "magic"}, {"Accept-Encoding": "gzip"}]
RAW = [
    b"",
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /api/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /api/query HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{",
    b"GET /" + b"a" * 70_000,
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
]


class BadAnswerError(AssertionError):
    """The server answered a request wrongly."""


@dataclass(frozen=True)
class Request:
    """A request for http.client to send, or raw bytes."""

    method: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    raw: bytes | None = None


@dataclass
class Answers:
    """Number of answers by status (0: closed without an answer), and the slowest one."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0


words = st.sampled_from(TEXTS) | st.text(max_size=20)
scalars = words | st.sampled_from(NUMBERS) | st.booleans() | st.none()
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def mostly(right: list[Any]) -> st.SearchStrategy[Any]:
    """Draw a possibly valid value, and sometimes anything at all."""
    return st.one_of(*[st.sampled_from(right)] * 7, anything)


filters = st.fixed_dictionaries(
    {},
    optional={
        "type": mostly(FILTERS),
        "tagk": mostly(["host", "gpu", ""]),
        "filter": mostly(TEXTS),
        "groupBy": mostly([True, False, "true"]),
    },
)
sub_queries = st.fixed_dictionaries(
    {"metric": mostly(METRICS)},
    optional={
        "aggregator": mostly(AGGREGATORS),
        "downsample": mostly(THINNING),
        "rate": mostly([True, False]),
        "rateOptions": mostly(
            [{}, {"counter": True, "counterMax": "65535", "dropResets": True}, {"resetValue": 1e400}]
        ),
        "filters": st.lists(filters, max_size=3) | anything,
        "tags": mostly([{}, {"host": "*"}, {"gpu": "0|1"}, {"host": "regexp(n.*)"}]),
        "explicitTags": mostly([True, False]),
    },
)
bodies = st.fixed_dictionaries(
    {"start": mostly(TIMES), "queries": st.lists(sub_queries | anything, max_size=4) | anything},
    optional={
        "end": mostly(TIMES),
        "msResolution": mostly([True, False]),
        "showQuery": mostly([True, False]),
        "globalAnnotations": mostly([True, False]),
        "timezone": mostly(["UTC", "Europe/Berlin", "Mars/Phobos", "../../etc/passwd"]),
    },
)
points = st.fixed_dictionaries(
    {},
    optional={
        "metric": mostly(["put.fuzz", "put fuzz", ""]),
        "timestamp": mostly(TIMES),
        "value": mostly(NUMBERS) | st.just("1.5"),
        "tags": mostly([{"host": "node1"}, {}, {"a b": "c"}]),
    },
)


def to_bytes(value: object) -> bytes:
    """Encode a value as JSON; NaN and infinities as Python writes them."""
    return json.dumps(value).encode()


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request."""
    if draw(st.integers(0, 19)) == 0:
        return Request(raw=draw(st.sampled_from(RAW) | st.binary(max_size=200)))
    path = draw(st.sampled_from(PATHS) | st.just("/api/query"))
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(st.sampled_from(NAMES), mostly([*TIMES, *METRICS, *TEXTS])), max_size=5))
        path += "?" + urlencode([(name, str(value).encode("utf-8", "surrogatepass")) for name, value in pairs])
    method = draw(st.sampled_from(METHODS))
    body = (
        None if method in {"GET", "HEAD"} else to_bytes(draw(bodies | points | st.lists(points, max_size=3) | anything))
    )
    if body is not None and draw(st.integers(0, 9)) == 0:
        body = body[: draw(st.integers(0, len(body)))] + draw(st.binary(max_size=5))
    return Request(method, quote(path, safe="/?&=%"), draw(st.sampled_from(HEADERS)), body)


def fuzz(port: int, token: str, *, n_requests: int, random_seed: int = 0) -> Answers:
    """Send requests and check every answer.

    Raises
    ------
    BadAnswerError
        If a request is answered with a server error or without OpenTSDB's error body; hypothesis shows the shortest
        such request.
    """
    answers = Answers()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    authorized = {"Authorization": f"Bearer {token}"}

    # No deadline: other load on the machine must not decide.
    @seed(random_seed)
    @settings(
        max_examples=n_requests,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(requests())
    def send(request: Request) -> None:
        begun_s = time.perf_counter()
        if request.raw is not None:
            answers.statuses[_send_raw(port, request.raw)] += 1
        else:
            connection.request(request.method, request.path, request.body, {**authorized, **request.headers})
            answer = connection.getresponse()
            content = answer.read()
            answers.statuses[answer.status] += 1
            _check(request, answer.status, content, answer.getheader("Content-Encoding"))
        answers.slowest_s = max(answers.slowest_s, time.perf_counter() - begun_s)

    with closing(connection):
        send()
    return answers


def _check(request: Request, status: int, content: bytes, encoding: str | None) -> None:
    if status >= 500:
        raise BadAnswerError(f"{status}: {content!r}")
    if request.method == "HEAD" or encoding is not None:
        return
    if status >= 400:
        body = json.loads(content)
        error = body.get("error", {})
        # For points sent to be stored, the body lists those that failed instead.
        if "failed" not in body and (error.get("code") != status or not isinstance(error.get("message"), str)):
            raise BadAnswerError(f"{body} is not OpenTSDB's error body")
    elif request.path.startswith("/api/") and content:
        json.loads(content, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise BadAnswerError(f"{constant} is not valid JSON")


def _send_raw(port: int, data: bytes) -> int:
    """Send raw bytes; return the status of the answer, 0 if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1 << 16)
        except ConnectionError:
            return 0
    status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
    if status >= 500:
        raise BadAnswerError(repr(answer))
    return status
