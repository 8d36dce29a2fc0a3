"""Ports: of a range or any; a kept one is a later program's; one for later is given to nobody who connects."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.ray.node import port_options
from laggard.system.ports import (
    VARIABLE,
    NoPortError,
    PortRange,
    PortRangeError,
    free_port,
    free_ports,
    give_back,
    keep,
    listen,
    port_for_later,
    port_is_taken,
    ports_for_later,
)

HERE = "127.0.0.1"


@pytest.fixture
def two_ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[PortRange]:
    """A range of two ports that are free, and given back at the end."""
    found = next(
        each
        for first in range(20_000, 30_000, 2)
        if not any(map(port_is_taken, (each := PortRange(first, first + 1)).ports))
    )
    monkeypatch.setenv(VARIABLE, str(found))
    yield found
    for port in found.ports:
        give_back(port)


def test_a_kept_port_can_be_listened_on_and_is_not_given_to_anyone_else() -> None:
    port = free_port(HERE)
    assert keep(port, HERE)
    assert keep(port, HERE)  # it is this job's already
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HERE, port))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HERE, port))
        server.listen()
    give_back(port)
    with socket.socket() as other:
        other.bind((HERE, port))


def test_a_port_that_is_in_use_cannot_be_kept() -> None:
    with socket.socket() as server:
        server.bind((HERE, 0))
        server.listen()
        assert not keep(server.getsockname()[1], HERE)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *(
            (text, "is not a range of ports")
            for text in ("60900", "60999-60900", "60900-65536", "a-b", "-60999", "1-2-3")
        ),
        ("80-90", "needs root, as ports below 1024 do"),
        ("0-60999", "needs root"),
    ],
)
def test_what_is_no_range_of_a_users_ports_is_refused(text: str, problem: str) -> None:
    with pytest.raises(PortRangeError, match=re.escape(f"--port-range={text} {problem}")):
        PortRange.of_text(text)


def test_a_range_is_read_as_it_is_written() -> None:
    assert PortRange.of_text(str(PortRange(60900, 60999))) == PortRange(60900, 60999)


@given(st.integers(1024, 60_000), st.integers(1, 500), st.integers(1, 50))
def test_nodes_that_are_one_machine_share_a_range_and_no_port_of_it(first: int, size: int, n_shares: int) -> None:
    ports = PortRange(first, first + size - 1)
    shares = [set(ports.share(number, n_shares).ports) for number in range(n_shares)]
    assert set.union(*shares) <= set(ports.ports)
    assert all(shares)
    if size >= n_shares:
        assert sum(map(len, shares)) == len(set.union(*shares))


def test_who_listens_does_so_within_the_range_but_not_where_another_program_will(two_ports: PortRange) -> None:
    kept = free_port(HERE)
    with listen(HERE, 1) as listener:
        assert {kept, listener.getsockname()[1]} == set(two_ports.ports)
        for want in (lambda: listen(HERE, 1), lambda: free_port(HERE), port_for_later, lambda: free_ports(1)):
            with pytest.raises(NoPortError, match=f"no port of --port-range={two_ports} is free at "):
                want()
    give_back(kept)
    assert sorted(free_ports(2)) == list(two_ports.ports)
    assert port_for_later() in two_ports.ports


def test_an_address_of_another_machine_is_not_a_range_without_free_ports(two_ports: PortRange) -> None:
    for want in (lambda: listen("192.0.2.1", 1), lambda: free_port("192.0.2.1")):
        with pytest.raises(OSError, match="assign requested address"):
            want()
    assert len(free_ports(2)) == len(two_ports.ports)


def test_without_a_range_any_port_does_and_ray_chooses_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with contextlib.closing(listen(HERE, 1)) as listener:
        assert listener.getsockname()[1]
    assert port_options(free_ports(4)) == []


def test_ray_gets_three_ports_for_itself_and_the_others_for_workers_but_none_that_it_refuses() -> None:
    assert port_options([8265, 7004, 7001, 52365, 7003, 7002]) == [
        "--node-manager-port=7001",
        "--object-manager-port=7003",
        "--runtime-env-agent-port=7002",
        "--worker-port-list=7004",
    ]


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
