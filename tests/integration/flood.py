"""Connections from an address that no node has."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator

from laggard.kvstore.strangers import STRANGERS_BACKLOG, STRANGERS_PAUSE_S
from tests.waiting import DEADLINE_S

__all__ = ["STRANGER", "call", "flooded"]

STRANGER = "127.9.9.9"
N_FLOOD = 300


def call(source: str, place: tuple[str, int]) -> socket.socket:
    """Connect from an address."""
    return socket.create_connection(place, timeout=DEADLINE_S, source_address=(source, 0))


@contextlib.contextmanager
def flooded(place: tuple[str, int]) -> Iterator[list[socket.socket]]:
    """Have a stranger open connections to a port; yield those that the kernel took, which are few in that time."""
    with contextlib.ExitStack() as stack:
        began_s = time.monotonic()
        calling = [stack.enter_context(socket.socket()) for _ in range(N_FLOOD)]
        for each in calling:
            each.settimeout(0.0)
            each.bind((STRANGER, 0))
            each.connect_ex(place)  # on one machine the kernel answers, or drops it, before this returns
        _, taken, _ = select.select([], calling, [], 0)
        took_s = time.monotonic() - began_s
        assert len(taken) <= STRANGERS_BACKLOG + 2 + took_s / STRANGERS_PAUSE_S
        yield taken
