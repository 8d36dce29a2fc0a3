"""What comes to a state server from unknown addresses comes through its guard: a little at a time, or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import redis

from laggard.kvstore import server_guard
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.server.program import choose_program
from laggard.kvstore.server_guard import PLACES, ServerGuard, user_of
from laggard.resilience.controller.state_server_keeper import StateKeeper
from tests.integration.flood import STRANGER, call, flooded
from tests.waiting import DEADLINE_S, wait_until

OWN, NODE, OTHER = "127.0.0.1", "127.0.0.7", "127.9.9.8"
HAS_TLS = choose_program(None, encrypt=True).tls
KINDS = [
    "plain",
    pytest.param("tls", marks=pytest.mark.skipif(not HAS_TLS, reason="needs a server with TLS on PATH")),
]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateServer]:
    with StateServer.start(tmp_path / "state", job="test", encrypt=request.param == "tls") as server:
        yield server


@pytest.fixture
def guard(server: StateServer) -> Iterator[ServerGuard]:
    guard = ServerGuard(server.endpoint)
    guard.admit(NODE)
    guard.stand(server.pid)
    yield guard
    guard.close()


@contextlib.contextmanager
def client(endpoint: Endpoint, source: str) -> Iterator[socket.socket]:
    """Be connected to a server from an address."""
    with call(source, (endpoint.host, endpoint.port)) as connection:
        if not endpoint.encrypted:
            yield connection
            return
        context = ssl.create_default_context(cadata=endpoint.authority)
        with context.wrap_socket(connection, server_hostname=endpoint.host) as encrypted:
            yield encrypted


def say(connection: socket.socket, command: str) -> bytes:
    """Return what a server answers."""
    connection.sendall(f"{command}\r\n".encode())
    return connection.recv(1 << 16)


def log_in(connection: socket.socket, endpoint: Endpoint) -> None:
    assert say(connection, f"AUTH {endpoint.user} {endpoint.password}") == b"+OK\r\n"


def is_dropped(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
        while connection.recv(1 << 16):
            pass
    return True


def callers(endpoint: Endpoint) -> set[str]:
    """Return from where the server itself is connected."""
    with endpoint.connect() as asking:
        return {each["addr"].rpartition(":")[0] for each in asking.client_list()}


def comes_to_the_server_itself(endpoint: Endpoint, source: str) -> bool:
    with client(endpoint, source) as connection:
        log_in(connection, endpoint)
        return source in callers(endpoint)


def test_the_jobs_own_addresses_come_to_the_server_itself(server: StateServer, guard: ServerGuard) -> None:
    assert comes_to_the_server_itself(server.endpoint, NODE)
    guard.admit(OTHER)
    assert comes_to_the_server_itself(server.endpoint, OTHER)


def test_a_stranger_who_logs_in_is_served_and_comes_to_the_server_itself_from_then_on(
    server: StateServer, guard: ServerGuard
) -> None:
    with client(server.endpoint, STRANGER) as connection:
        log_in(connection, server.endpoint)
        assert callers(server.endpoint) == {OWN}
        wait_until(lambda: comes_to_the_server_itself(server.endpoint, STRANGER))
        assert say(connection, "PING") == b"+PONG\r\n", "the first connection goes on"
    assert OTHER not in guard._known


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("first", ["AUTH laggard wrong", "HELLO 3 SETNAME laggard", "PING"])
def test_a_stranger_who_does_not_log_in_is_dropped_and_stays_a_stranger(server: StateServer, first: str) -> None:
    with client(server.endpoint, STRANGER) as connection:
        assert say(connection, first).startswith(b"-")
        assert is_dropped(connection)
    with client(server.endpoint, STRANGER) as connection:
        log_in(connection, server.endpoint)
        assert STRANGER not in callers(server.endpoint)


@pytest.mark.usefixtures("guard")
def test_a_flood_does_not_come_to_the_server(server: StateServer) -> None:
    place = server.endpoint.host, server.endpoint.port
    with server.endpoint.connect() as asking, flooded(place):
        assert STRANGER not in callers(server.endpoint)
        assert asking.ping()
        with client(server.endpoint, NODE) as connection:
            log_in(connection, server.endpoint)


def test_those_who_hold_connections_keep_nobody_out(server: StateServer, guard: ServerGuard) -> None:
    with contextlib.ExitStack() as stack, patch.object(server_guard, "PROOF_S", DEADLINE_S):
        place = server.endpoint.host, server.endpoint.port
        held = [stack.enter_context(call(OTHER, place)) for _ in range(PLACES + 1)]
        assert is_dropped(held[0]), "the oldest makes place"
        with client(server.endpoint, STRANGER) as connection:
            log_in(connection, server.endpoint)
            wait_until(lambda: STRANGER in guard._known)


def test_where_the_kernel_lends_no_socket_the_server_takes_everything(
    server: StateServer, caplog: pytest.LogCaptureFixture
) -> None:
    guard = ServerGuard(server.endpoint)
    with (
        patch.object(server_guard, "second_queues", side_effect=PermissionError(1, "Operation not permitted")),
        caplog.at_level(logging.DEBUG, server_guard.__name__),
    ):
        guard.stand(server.pid)
    assert "the state server takes strangers' connections itself: [Errno 1] Operation not permitted" in caplog.text
    assert comes_to_the_server_itself(server.endpoint, STRANGER)
    guard.close()


@pytest.mark.usefixtures("guard")
def test_once_the_server_is_dead_callers_are_dropped(server: StateServer) -> None:
    server.kill()
    server.wait_exit(DEADLINE_S)
    for source in (NODE, STRANGER):
        with call(source, (server.endpoint.host, server.endpoint.port)) as connection:
            assert is_dropped(connection)


def test_a_server_that_is_restarted_is_guarded_again_and_nothing_is_left_behind(tmp_path: Path) -> None:
    before = descriptors()
    with StateKeeper(tmp_path / "state", job="test", host=OWN) as keeper:
        keeper.admit(NODE)
        with client(keeper.endpoint, STRANGER) as connection:
            log_in(connection, keeper.endpoint)
            wait_until(lambda: STRANGER in keeper._guard._known)
        os.kill(keeper.pid, 9)
        wait_until(lambda: keeper.messages)
        assert comes_to_the_server_itself(keeper.endpoint, NODE)
        assert comes_to_the_server_itself(keeper.endpoint, STRANGER), "it has proved itself before"
        keeper.admit(OTHER)
        assert comes_to_the_server_itself(keeper.endpoint, OTHER)
        with client(keeper.endpoint, "127.9.9.7") as connection:
            log_in(connection, keeper.endpoint)
            assert "127.9.9.7" not in callers(keeper.endpoint)
    wait_until(lambda: not {"guard", "stranger"} & {thread.name for thread in threading.enumerate()})
    wait_until(lambda: descriptors() <= before, lambda: str(descriptors() - before))


def descriptors() -> set[str]:
    """Return the sockets and processes that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return {name for name in found if name.startswith(("socket:", "anon_inode:[pidfd]"))}


CLIENTS = b"""\
id=3 addr=127.0.0.1:6000 laddr=127.0.0.1:6379 fd=8 name=user=laggard age=0 cmd=hello user=default redir=-1 resp=2
id=5 addr=127.0.0.1:600 laddr=127.0.0.1:6000 fd=9 name= age=0 idle=0 flags=N db=0 cmd=client user=laggard resp=2
id=6 addr=127.0.0.7:6000 laddr=127.0.0.1:6379 fd=9 name= age=0 cmd=psync user=laggard-copy-0f
"""


@pytest.mark.parametrize(
    ("address", "user"),
    [
        (("127.0.0.1", 6000), "default"),
        (("127.0.0.1", 600), "laggard"),
        (("127.0.0.7", 6000), "laggard-copy-0f"),
        (("127.0.0.1", 60), ""),
        (("27.0.0.1", 6000), ""),
        (("127.0.0.1", 6379), ""),
    ],
)
def test_the_servers_list_says_who_has_logged_in(address: tuple[str, int], user: str) -> None:
    assert user_of(address, CLIENTS) == user


def test_an_endpoint_of_another_server_may_have_the_default_user(server: StateServer) -> None:
    endpoint = server.endpoint
    other = Endpoint(endpoint.host, endpoint.port, endpoint.job, endpoint.password, endpoint.authority)
    with other.connect() as asking:
        assert asking.acl_whoami() == "default"
    with endpoint.connect() as asking:
        assert asking.acl_whoami() == "laggard"
    with (
        pytest.raises(redis.AuthenticationError),
        Endpoint(
            endpoint.host, endpoint.port, endpoint.job, "wrong", endpoint.authority, endpoint.user
        ).connect() as asking,
    ):
        asking.ping()
