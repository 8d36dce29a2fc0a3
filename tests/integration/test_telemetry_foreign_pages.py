"""Pages of other sites in the browser of somebody who may read the telemetry: DNS rebinding, and what comes with it."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import time
from collections.abc import Iterator

import pytest

from laggard.kvstore.server.process import StateServer
from laggard.telemetry.server.handlers import ROUTES
from laggard.telemetry.server.page import PAGE_ROUTES
from tests.integration.serving import DEADLINE_S, Served, serve

SECRET = "only_for_the_owner"
PATHS = sorted({*ROUTES, *PAGE_ROUTES, "/api/v1/query", "/nowhere", "/api/query/", "//", "/page/map?metric=" + SECRET})
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
FOREIGN = [
    "evil.example",
    "evil.example:4242",
    "EVIL.Example.:4242",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "[::1].evil.example:4242",
    "localhost@evil.example",
    "evil.example:4242:4242",
    "localhost, evil.example",
    "localhost:evil",
    "0x7f.1",
    "2130706433",
]
OWN = ["localhost", "LocalHost:1", "localhost.", "localhost.:80", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:4242"]


@pytest.fixture(scope="module", params=["", "reading_needs_token: true\n"], ids=["open", "closed"])
def served(
    request: pytest.FixtureRequest, state_server: StateServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serve(state_server, tmp_path_factory.mktemp("node1"), settings=request.param) as served:
        served.node.store.add(SECRET, {"host": "node1"}, round(time.time() * 1e6), 1.0)
        yield served


def sent(served: Served, message: str) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S) as connection:
        connection.sendall(message.encode())
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                found += piece
    return found


def status_of(served: Served, line: str, *headers: str) -> int:
    """Send a request; return the status of the answer, in which there is nothing of the job."""
    found = sent(served, "\r\n".join([line, *headers, "Connection: close", "", ""]))
    assert SECRET.encode() not in found
    assert b"access-control" not in found.lower(), "pages of others may not read it"
    return int(found.split(maxsplit=2)[1])


@pytest.mark.parametrize("has_token", [False, True])
def test_every_path_and_method_is_refused_under_a_foreign_name(served: Served, has_token: bool) -> None:
    headers = {"Host": "evil.example"} | ({"Authorization": f"Bearer {served.token}"} if has_token else {})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)) as connection:
        statuses = {}
        for path in PATHS:
            for method in METHODS:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                assert SECRET.encode() not in answer.read().replace(path.encode(), b"")
                statuses[method, path] = answer.status

    assert set(statuses.values()) == {421}


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_only_looks_like_the_servers_is_foreign(served: Served, host: str) -> None:
    assert status_of(served, "GET /page/job HTTP/1.1", f"Host: {host}") == 421


@pytest.mark.parametrize("host", [*OWN, socket.gethostname(), socket.gethostname().upper() + ":1"])
def test_the_servers_own_names_and_addresses_are_served(served: Served, host: str) -> None:
    assert status_of(served, "GET /health HTTP/1.1", f"Host: {host}") == 200


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET http://evil.example/page/job HTTP/1.1", ["Host: localhost"], 400),
        ("GET http://localhost/page/job HTTP/1.1", ["Host: evil.example"], 400),
        ("GET http://localhost/page/job HTTP/1.1", ["Host: localhost"], 400),
        ("CONNECT evil.example:80 HTTP/1.1", ["Host: localhost"], 400),
        ("OPTIONS * HTTP/1.1", ["Host: evil.example"], 400),
        ("GET /page/job HTTP/1.1", [], 400),
        ("GET /page/job HTTP/1.1", ["Host: localhost", "Host: evil.example"], 400),
        ("GET /page/job HTTP/1.1", ["Host: evil.example", "Host: localhost"], 400),
        ("GET /page/job HTTP/1.1", ["Host: evil.example", "X-Forwarded-Host: localhost"], 421),
        ("GET /page/job HTTP/1.0", ["Host: evil.example"], 421),
        ("GET /page/job HTTP/2.0", ["Host: evil.example"], 421),
        ("GET /page/job HTTP/1.1", ["Host: evil.example", "Upgrade: websocket", "Connection: upgrade"], 421),
        ("GET /page/job HTTP/1.1", ["Host: evil.example", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"], 421),
    ],
)
def test_other_forms_of_requests_do_not_get_in_either(
    served: Served, line: str, headers: list[str], status: int
) -> None:
    assert status_of(served, line, *headers) == status


def test_nothing_is_upgraded(served: Served) -> None:
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    for upgrade in ("websocket", "h2c"):
        lines = [f"Upgrade: {upgrade}", "Connection: upgrade", key, "Sec-WebSocket-Version: 13"]
        assert status_of(served, "GET /health HTTP/1.1", "Host: localhost", *lines) == 200


def test_http_2_with_prior_knowledge_is_refused(served: Served) -> None:
    found = sent(served, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")

    assert found.startswith(b"HTTP/1.1 400 ")
    assert SECRET.encode() not in found


def test_each_request_of_a_connection_is_checked(served: Served) -> None:
    first, second = ("GET /health HTTP/1.1\r\nHost: {}\r\n{}\r\n".format(*each) for each in KEPT)

    found = sent(served, first + second)

    assert re.findall(rb"HTTP/1\.1 (\d+) ", found) == [b"200", b"421"]


KEPT = [("localhost", ""), ("evil.example", "Connection: close\r\n")]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("https://evil.example:4242", 403),
        ("http://localhost.evil.example", 403),
        ("http://8.8.8.8", 403),
        ("null", 403),
        ("localhost", 403),
        ("http://[::1", 403),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:4242", 200),
        ("http://[::1]:4242", 200),
        (f"http://{socket.gethostname()}:4242", 200),
    ],
)
def test_pages_of_others_are_refused_by_their_origin(served: Served, origin: str, status: int) -> None:
    assert status_of(served, "GET /health HTTP/1.1", "Host: localhost:4242", f"Origin: {origin}") == status
    assert status_of(served, "OPTIONS /health HTTP/1.1", "Host: localhost:4242", f"Origin: {origin}") in {status, 405}
