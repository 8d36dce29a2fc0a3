"""Connections to a port of ours that have not proved yet that they belong to the job.

Each port has room for some of them, and in a full room the oldest is dropped, so that those who hold connections keep
nobody out. A flood does: whoever opens them faster than they can be proved is for the site's firewall.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

MAX_UNPROVEN = 64  # python -m benchmarks outsider
_NO_DESCRIPTOR_S = 0.05  # until others of the process are free

_log = logging.getLogger(__name__)

Connection = TypeVar("Connection", bound=Hashable)


class Unproven(Generic[Connection]):
    """The connections of one port that have not proved themselves; ``drop`` is called with those that make place."""

    def __init__(self, drop: Callable[[Connection], object], most: int = MAX_UNPROVEN) -> None:
        self._drop = drop
        self._most = most
        self._waiting: dict[Connection, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._waiting

    def add(self, connection: Connection) -> None:
        """Make room for a connection."""
        if len(self._waiting) >= self._most:
            self.drop_oldest()
        with self._lock:
            self._waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """Leave a connection alone, if it was not dropped: it has proved itself, or has ended."""
        with self._lock:
            self._waiting.pop(connection, None)

    def drop_oldest(self) -> bool:
        """Drop the oldest connection; return whether there was one."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            del self._waiting[oldest]
        self._drop(oldest)
        return True

    @contextlib.contextmanager
    def holding(self, connection: Connection) -> Iterator[None]:
        """Have a connection prove itself until the end of the block."""
        self.add(connection)
        try:
            yield
        finally:
            self.remove(connection)


def shut_down(connection: socket.socket) -> None:
    """End a connection, or a listener, so that whoever waits for it in another thread gets an error or the end."""
    with contextlib.suppress(OSError):  # the other end has closed it
        connection.shutdown(socket.SHUT_RDWR)


def accepted(listener: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """Yield the connections that come to a listener, and from where, until it is closed."""
    while True:
        try:
            found = listener.accept()
        except OSError as error:
            if listener.fileno() < 0:
                return
            _log.debug("a connection cannot be accepted: %s", error)
            time.sleep(_NO_DESCRIPTOR_S)  # others of this process's will be free again
        else:
            yield found
