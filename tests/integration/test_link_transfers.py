"""Transfers between nodes: who may take part, and what is measured."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from laggard.collectors.links.gate import DONE, TRANSFERS, Gate, Step
from laggard.collectors.links.handshake import NONCE_BYTES, PROOF_BYTES, UnauthenticatedError, key_of
from laggard.collectors.links.prober import LinkProber, LinkRound
from laggard.collectors.links.transfer import LinkCall, LinkListener
from laggard.system.unproven import MAX_UNPROVEN
from tests.waiting import DEADLINE_S

KEY = key_of("a secret", "job", 0)
LOOPBACK = "127.0.0.1"
N_BYTES = 1 << 20


@pytest.fixture
def listener() -> Iterator[LinkListener]:
    listener = LinkListener(LOOPBACK, KEY, Gate())
    yield listener
    listener.close()


def test_a_partner_that_knows_the_secret_is_timed(listener: LinkListener) -> None:
    with LinkCall(LOOPBACK, (LOOPBACK, listener.port), KEY) as call:
        transfer = call.send(N_BYTES, 3)
    assert transfer.duration_s > 0
    assert transfer.foreign_share == 0  # loopback is no NIC


@pytest.mark.parametrize(
    "other",
    [key_of("another secret", "job", 0), key_of("a secret", "other", 0), key_of("a secret", "job", 1)],
    ids=["another secret", "another job", "an earlier launch"],
)
def test_who_does_not_know_the_secret_takes_no_part(listener: LinkListener, other: bytes) -> None:
    with pytest.raises(OSError, match=r"closed|reset"):
        LinkCall(LOOPBACK, (LOOPBACK, listener.port), other)


def test_an_unauthenticated_client_learns_nothing_but_a_nonce(listener: LinkListener) -> None:
    heard = []
    for _ in range(2):
        with socket.create_connection((LOOPBACK, listener.port), timeout=DEADLINE_S) as client:
            nonce = client.recv(1000)
            client.sendall(bytes(NONCE_BYTES + PROOF_BYTES))
            rest = _rest(client)
            heard.append(nonce)
            assert len(nonce) == NONCE_BYTES
            assert rest == b""
    assert heard[0] != heard[1]


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1000)
    except ConnectionResetError:
        return b""


def test_a_listener_that_does_not_know_the_secret_is_not_measured() -> None:
    with socket.create_server((LOOPBACK, 0)) as impostor:

        def impersonate() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(bytes(NONCE_BYTES))
                said = connection.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
                connection.sendall(said[NONCE_BYTES:])  # the caller's own proof, sent back

        thread = threading.Thread(target=impersonate)
        thread.start()
        with pytest.raises(UnauthenticatedError, match="the listener does not know"):
            LinkCall(LOOPBACK, impostor.getsockname(), KEY)
        thread.join(DEADLINE_S)


def test_unauthenticated_clients_that_say_nothing_are_few_and_soon_gone(listener: LinkListener) -> None:
    silent = [socket.create_connection((LOOPBACK, listener.port), timeout=DEADLINE_S) for _ in range(MAX_UNPROVEN + 1)]
    heard = [len(each.recv(NONCE_BYTES)) for each in silent]  # for the last one, the first has made place
    assert heard == [NONCE_BYTES] * len(silent)
    assert [_rest(each) for each in silent] == [b""] * len(silent)  # all of them, within their deadline
    for each in silent:
        each.close()
    with LinkCall(LOOPBACK, (LOOPBACK, listener.port), KEY) as call:
        assert call.send(N_BYTES, 1).duration_s > 0


def test_a_listener_listens_at_the_nodes_address_alone(listener: LinkListener) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listener.port), timeout=DEADLINE_S)


def together(probers: list[LinkProber], meet: Callable[[LinkProber], LinkRound]) -> dict[str, LinkRound]:
    """Let all probers do something at once."""
    found: dict[str, LinkRound] = {}

    def one(prober: LinkProber) -> None:
        found[prober.host] = meet(prober)

    threads = [threading.Thread(target=one, args=(prober,)) for prober in probers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return found


def test_each_node_sends_to_each_partner_in_turn() -> None:
    circle = {"a": ["b", "c", "d"], "b": ["a", "d", "c"], "c": ["d", "a", "b"], "d": ["c", "b", "a"]}
    probers = [LinkProber(host, LOOPBACK, KEY) for host in circle]
    addresses = {prober.host: prober.listens_at for prober in probers}
    found = together(probers, lambda prober: prober.run(7, circle[prober.host], addresses, N_BYTES))
    for host, round_ in found.items():
        assert [reading.receiver for reading in round_.readings] == circle[host], round_.failures
        assert all(reading.duration_s > 0 for reading in round_.readings)
        assert {(reading.round, reading.sender, reading.n_bytes) for reading in round_.readings} == {(7, host, N_BYTES)}
    for prober in probers:
        prober.close()


def test_a_partner_that_is_gone_is_named_and_the_others_are_measured() -> None:
    circle: dict[str, list[str | None]] = {"a": ["b", "c"], "b": ["a", None], "c": [None, "a"]}
    probers = [LinkProber(host, LOOPBACK, KEY) for host in circle]
    addresses = {prober.host: prober.listens_at for prober in probers}
    gone = probers.pop(1)
    gone.close()
    found = together(probers, lambda prober: prober.run(0, circle[prober.host], addresses, N_BYTES))
    assert list(found["a"].failures) == ["b"]
    assert "refused" in found["a"].failures["b"]
    assert [reading.receiver for reading in found["a"].readings] == ["c"]
    for prober in probers:
        prober.close()


def test_a_node_that_is_a_round_ahead_is_not_measured_and_not_waited_for() -> None:
    gate = Gate()
    gate.reach(Step(4, 1, TRANSFERS))
    soon_s = time.monotonic() + DEADLINE_S
    assert gate.wait(Step(4, 1, TRANSFERS), soon_s)
    assert not gate.wait(Step(4, 0, TRANSFERS), soon_s)
    assert gate.wait(Step(4, 0, DONE), soon_s)
    assert not gate.wait(Step(4, 1, DONE), time.monotonic())
