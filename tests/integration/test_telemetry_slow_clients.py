"""Clients that make no progress are disconnected; the others are served in the meantime."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from laggard.telemetry.server.app import RecentAnswers
from laggard.telemetry.server.protocol import BoundedProtocol

DEADLINE_S = 20.0
HEAD_DEADLINE_S = 0.3
LARGE = 16 << 20
PLACES = 5


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("hello" if scope["path"] == "/" else "x" * LARGE)(scope, receive, send)


class Strict(BoundedProtocol):
    max_connections = PLACES
    head_deadline_s = read_deadline_s = HEAD_DEADLINE_S


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(hello, http=Strict, ws="none", lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def closed_by_server(connection: socket.socket) -> bool:
    connection.settimeout(DEADLINE_S)
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            continue
    return True


def let_deadlines_pass(port: int, n_deadlines: int) -> None:
    """Wait until the server has closed this many connections, one after the other, for lack of a complete head."""
    for _ in range(n_deadlines):
        with socket.create_connection(("127.0.0.1", port)) as witness:
            assert closed_by_server(witness)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_end_ends_the_connection(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(sent)

        assert closed_by_server(connection)


def test_a_second_head_that_does_not_end_ends_the_connection_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.settimeout(DEADLINE_S)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HT")

        assert closed_by_server(connection)


def test_a_client_that_keeps_its_connection_may_think_between_requests(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.connect()
    kept = connection.sock
    for _ in range(2):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"hello"
        let_deadlines_pass(port, 2)

    assert connection.sock is kept
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"hello"
    assert connection.sock is kept
    connection.close()


def test_an_answer_that_is_not_read_ends_the_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        let_deadlines_pass(port, 3)
        connection.settimeout(DEADLINE_S)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                received += len(piece)

    assert received < LARGE


def test_a_new_client_is_always_accepted(port: int) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    others = []
    for _ in range(4 * PLACES):
        others.append(socket.create_connection(("127.0.0.1", port)))
        kept.request("GET", "/")
        assert kept.getresponse().read() == b"hello"

    assert closed_by_server(others[0])
    for each in others:
        each.close()
    kept.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"put m 1 2 a=b\n\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()

    assert answer.status == 400


def test_garbage_after_a_request_only_ends_the_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\x00rubbish\r\n\r\n")

        assert closed_by_server(connection)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_recent_answer_is_reused_for_a_moment_only() -> None:
    now_s = [100.0]
    recent = RecentAnswers(lambda: now_s[0])
    answer = PlainTextResponse("x")

    recent.put("question", answer)

    assert recent.get("question") is answer
    assert recent.get("another") is None
    now_s[0] += 0.3
    assert recent.get("question") is None
