"""A claimed port is reserved for the process that will listen there."""

from __future__ import annotations

import socket

import pytest

from laggard.resilience.allocation import network
from laggard.resilience.allocation.network import claim_port, free_port

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[socket.socket, socket.socket]]:
    made: dict[int, tuple[socket.socket, socket.socket]] = {}
    monkeypatch.setattr(network, "_claims", made)
    return made


def test_a_claimed_port_can_be_listened_on_and_is_not_given_to_anyone_else(
    claims: dict[int, tuple[socket.socket, socket.socket]],
) -> None:
    port = free_port(HERE)
    assert claim_port(port, HERE)
    assert claim_port(port, HERE)  # it is this job's already
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((HERE, port))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HERE, port))
        server.listen()
    mine = claims.pop(port)
    for each in mine:
        each.close()


def test_a_port_that_is_in_use_cannot_be_claimed() -> None:
    with socket.socket() as server:
        server.bind((HERE, 0))
        server.listen()
        assert not claim_port(server.getsockname()[1], HERE)
