"""Connections of a program to the shard server of its node."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from laggard.kvstore.checkpoints.wire import receive_with_file, send

# The servers are started when a program first has a checkpointer.
START_DEADLINE_S = 60.0
ANSWER_DEADLINE_S = 90.0  # longer than a peer is waited for, and State
# What a peer sends, and how much memory is cleared, in a second at the very least.
_SLOWEST_BYTES_PER_S = 20e6
_POLL_S = 0.02  # a shard server starts in a second


def deadline_s(size_bytes: int) -> float:
    """Return how long to wait for an answer that takes as long as the transfer of so many bytes."""
    return ANSWER_DEADLINE_S + size_bytes / _SLOWEST_BYTES_PER_S


def connect(path: Path, ask_for_server: Callable[[], None] | None = None) -> socket.socket:
    """Connect to a shard server, which may be about to start; ask for it if it does not listen."""
    until_s = time.monotonic() + START_DEADLINE_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_DEADLINE_S)
            connection.connect(str(path))
        except OSError:
            connection.close()
            if time.monotonic() > until_s:
                raise
        else:
            return connection
        if ask_for_server is not None:
            ask_for_server()
            ask_for_server = None
        time.sleep(_POLL_S)


def ask_ahead(path: Path, owner: str, size_bytes: int) -> tuple[int, int] | None:
    """Return number and descriptor of a file for a shard to come; by way of a connection that no save waits for."""
    with connect(path) as connection:
        send(connection, {"do": "prepare", "owner": owner, "size": size_bytes})
        answer, descriptor = receive_with_file(connection)
        return None if descriptor is None else (int(answer["file"]), descriptor)
