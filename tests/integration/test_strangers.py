"""A flood from unknown addresses is dropped by the kernel; the job's own addresses have a queue of their own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from laggard.collectors.links.gate import Gate
from laggard.collectors.links.handshake import key_of
from laggard.collectors.links.transfer import LinkCall, LinkListener
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.strangers import STRANGERS_BACKLOG, Places, TwoQueues
from tests.integration.flood import STRANGER, call, flooded
from tests.integration.shard_nodes import ShardNodes
from tests.waiting import DEADLINE_S

OWN, KNOWN = "127.0.0.1", "127.0.0.7"
KEY = key_of("a secret", "job", 0)


@pytest.fixture
def queues() -> Iterator[TwoQueues]:
    queues = TwoQueues(OWN, [KNOWN])
    for listener, _ in queues.queues:
        listener.settimeout(DEADLINE_S)
    yield queues
    queues.close()


@pytest.mark.parametrize(("source", "number"), [(OWN, 0), (KNOWN, 0), (STRANGER, 1)])
def test_each_address_has_its_queue(queues: TwoQueues, source: str, number: int) -> None:
    with call(source, (OWN, queues.port)):
        connection, where = queues.queues[number][0].accept()
        connection.close()
        assert where[0] == source


def test_who_has_proved_himself_uses_the_first_queue_from_then_on(queues: TwoQueues) -> None:
    queues.admit(STRANGER)
    with call(STRANGER, (OWN, queues.port)):
        connection, where = queues.queues[0][0].accept()
        connection.close()
        assert where[0] == STRANGER


def test_the_kernel_drops_a_flood_and_nobody_known_waits_for_it(queues: TwoQueues) -> None:
    with flooded((OWN, queues.port)) as taken:
        assert len(taken) <= STRANGERS_BACKLOG + 1  # nobody takes any
        with call(KNOWN, (OWN, queues.port)):
            connection, where = queues.queues[0][0].accept()
            connection.close()
            assert where[0] == KNOWN


def test_in_a_full_room_the_oldest_makes_place() -> None:
    places = Places(1)
    (oldest, its_end), (newer, other_end) = socket.socketpair(), socket.socketpair()
    with oldest, its_end, newer, other_end, places.taken_by(oldest):
        with places.taken_by(newer):
            assert its_end.recv(1) == b""
        newer.sendall(b"x")
        assert other_end.recv(1) == b"x"


def test_links_are_measured_during_a_flood() -> None:
    listener = LinkListener(OWN, KEY, Gate())
    listener.expect([KNOWN])
    try:
        with flooded((OWN, listener.port)), LinkCall(KNOWN, (OWN, listener.port), KEY) as partner:
            assert partner.latency_s() > 0
    finally:
        listener.close()


def test_copies_of_checkpoints_are_made_during_a_flood_of_all_shard_servers(tmp_path: Path) -> None:
    with StateServer.start(tmp_path / "state", job="job") as server:
        nodes = ShardNodes(server, tmp_path, 2)
        nodes.begin()
        nodes.start()
        try:
            with contextlib.ExitStack() as stack:
                for place in nodes.registry.read().values():
                    stack.enter_context(flooded((place.address, place.port)))
                checkpoints = nodes.checkpointer("n1")
                checkpoints.save(1, {"own": np.zeros(2 << 20, np.uint8)})
                assert checkpoints.wait(1, timeout_s=DEADLINE_S)
        finally:
            for host in tuple(nodes.processes):
                nodes.lose(host)
