"""A claimed port is reserved for the process that will listen there; one for later is given to nobody who connects."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from laggard.resilience.allocation import network
from laggard.resilience.allocation.network import claim_port, free_port, own_address, port_for_later, ports_for_later

HERE = "127.0.0.1"


def test_a_claimed_port_can_be_listened_on_and_is_not_given_to_anyone_else() -> None:
    port = free_port(HERE)
    assert claim_port(port, HERE)
    assert claim_port(port, HERE)  # it is this job's already
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HERE, port))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HERE, port))
        server.listen()
    for each in network._claims.pop(port):
        each.close()


def test_a_port_that_is_in_use_cannot_be_claimed() -> None:
    with socket.socket() as server:
        server.bind((HERE, 0))
        server.listen()
        assert not claim_port(server.getsockname()[1], HERE)


@pytest.mark.parametrize(
    ("given_out", "ports"),
    [
        ("32768\t60999\n", range(20_000, 30_000)),
        ("25000 60999", range(20_000, 25_000)),
        ("1024 24999", range(25_000, 30_000)),
        ("1024 65535", range(0)),
    ],
)
def test_ports_for_later_are_not_among_those_of_connections(given_out: str, ports: range) -> None:
    assert list(ports_for_later(given_out)) == list(ports)


def test_a_port_for_later_is_free_at_every_address() -> None:
    with socket.socket() as other:
        other.bind((HERE, free_port(HERE)))
        taken = other.getsockname()[1]
        drawn = iter([taken, free_port("")])
        assert port_for_later(draw=lambda _: next(drawn)) != taken


def test_where_every_port_may_be_given_to_connections_one_that_is_free_now_is_used(
    tmp_path: Path,
) -> None:
    everything = tmp_path / "ip_local_port_range"
    everything.write_text("1024\t65535\n")
    assert port_for_later(everything) > 0


def test_a_machine_calls_a_loopback_address_from_its_first_one() -> None:
    assert own_address("127.0.0.9") == HERE
