"""A port that was claimed is kept for who is to listen there."""

from __future__ import annotations

import socket

import pytest

from resilience import ports
from resilience.ports import claim_port, free_port

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[socket.socket, socket.socket]]:
    made: dict[int, tuple[socket.socket, socket.socket]] = {}
    monkeypatch.setattr(ports, "_claims", made)
    return made


def test_a_claimed_port_may_be_listened_on_and_is_nobody_elses(
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


def test_a_port_on_which_somebody_listens_is_not_claimed() -> None:
    with socket.socket() as server:
        server.bind((HERE, 0))
        server.listen()
        assert not claim_port(server.getsockname()[1], HERE)
