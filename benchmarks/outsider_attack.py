"""What an outsider does to ports, as a program that needs nothing of ours: it reads orders, and says what it achieved.

An order is a line of JSON, ``[attack, seconds, [[address, port], ...]]``; the answer is the number of connections made.
"""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import sys
import time
from typing import cast

SCANNED_AT_ONCE = 64
HELD = 3000  # over all ports of an attack
WAIT_S = 1.0
ALL_PORTS = range(1, 65536)

Place = tuple[str, int]


class Attack:
    """Connections that are opened again and again; with ``hold`` they are kept until the other end closes them."""

    def __init__(self, source: str, *, hold: bool) -> None:
        self._source = source
        self._hold = hold
        self._selector = selectors.DefaultSelector()
        self._begun: dict[socket.socket, tuple[Place, float]] = {}
        self._held: dict[socket.socket, Place] = {}
        self.connections = 0

    def begin(self, place: Place) -> None:
        """Open a connection, without waiting for it."""
        calling = socket.socket()
        calling.settimeout(0.0)
        calling.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
        calling.bind((self._source, 0))
        with contextlib.suppress(BlockingIOError):
            calling.connect_ex(place)
        self._begun[calling] = place, time.monotonic() + WAIT_S
        self._selector.register(calling, selectors.EVENT_WRITE)

    def go_on(self) -> list[Place]:
        """Go on with what has happened; return where there is room for a new connection."""
        free = []
        for key, _ in self._selector.select(WAIT_S / 10):
            connection = cast("socket.socket", key.fileobj)
            if connection in self._held:
                with contextlib.suppress(BlockingIOError):
                    if not _received(connection):
                        free.append(self._held.pop(connection))
                        self._close(connection)
                continue
            place, _ = self._begun.pop(connection)
            if not self._greeted(connection):
                free.append(place)
            elif self._hold:
                self._held[connection] = place
                self._selector.modify(connection, selectors.EVENT_READ)
                continue
            else:
                free.append(place)
            self._close(connection)
        now_s = time.monotonic()
        for connection in [each for each, (_, until_s) in self._begun.items() if until_s < now_s]:
            free.append(self._begun.pop(connection)[0])
            self._close(connection)
        return free

    def _greeted(self, connection: socket.socket) -> bool:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        self.connections += 1
        with contextlib.suppress(OSError):
            connection.send(b"sl")
        return True

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def end(self) -> None:
        """Close everything."""
        for connection in (*self._begun, *self._held):
            connection.close()
        self._selector.close()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except BlockingIOError:
        raise
    except OSError:
        return b""


def attack(source: str, what: str, seconds: float, places: list[Place]) -> int:
    """Attack for so long; return how many connections came about."""
    attack, until_s = Attack(source, hold=what == "hold"), time.monotonic() + seconds
    addresses = sorted({address for address, _ in places})
    if what == "scan":
        every = ((address, port) for port in ALL_PORTS for address in addresses)
        begun = [next(every) for _ in range(SCANNED_AT_ONCE)]
    else:
        begun = [place for place in places for _ in range(HELD // len(places))]
    for place in begun:
        attack.begin(place)
    while time.monotonic() < until_s:
        for place in attack.go_on():
            attack.begin(place if what != "scan" else next(every, place))
    attack.end()
    return attack.connections


def main(source: str) -> None:
    """Obey until standard input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for line in sys.stdin:
        what, seconds, places = json.loads(line)
        print(attack(source, what, seconds, [(address, port) for address, port in places]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
