"""Timed transfers between two nodes, over TCP.

A node's :class:`LinkListener` serves its partners; a :class:`LinkCall` is the other end, whose clock counts.
A transfer is timed from the request to the receiver's acknowledgement of the last byte: a disturbance can only add to
that, while a receiver's own clock would miss what it had in its buffers already.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Self

from laggard.collectors.links.gate import Gate, Step
from laggard.collectors.links.handshake import UnauthenticatedError, answer, call, receive_exactly, receive_into
from laggard.collectors.links.interface_counters import carried_bytes, interface_of, retransmissions_of
from laggard.system.ports import listen
from laggard.system.unproven import Unproven, accepted, shut_down

_log = logging.getLogger("laggard.collectors.links")

CONNECT_S = 2.0
HANDSHAKE_S = 3.0
TRANSFER_DEADLINE_S = 10.0
WAIT_S = 15.0
"""How long a node waits for its partner: longer than a transfer may take, since the partner may be in one."""
LONGEST_S = 1.0
"""Once an exchange's transfers have taken this long, there are no more repeats."""
MAX_BYTES = 64 << 20
# What a NIC carries beside the payload: headers, and the acknowledgements of the transfer in the other direction.
_OWN_SHARE = 0.08

_REQUEST = struct.Struct("!cQQQ")
_REPLY = struct.Struct("!cQ")
_PUT, _WAIT = b"s", b"w"
_YES, _NO = b"y", b"n"
_CHUNK_BYTES = 1 << 20
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Transfer:
    """The fastest of some repeats."""

    duration_s: float  # how long it took
    foreign_share: float  # Bytes that others carried on the NIC of either end meanwhile, over the transfer's own
    retransmissions: int  # how many segments TCP had to send again, in all repeats


class LinkListener:
    """Takes what its partners send; whoever does not know the job's secret learns nothing and is not waited for."""

    def __init__(self, address: str, key: bytes, gate: Gate) -> None:
        self._key = key  # the secret of the launch
        self._gate = gate  # where this node is in its round
        self._interface = interface_of(address)
        self._listener = listen(address, _BACKLOG)
        self._unproven = Unproven[socket.socket](shut_down)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="link-listener", daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        shut_down(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        for connection, (address, *_) in accepted(self._listener):
            threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        with connection:
            try:
                with self._unproven.holding(connection):
                    answer(connection, self._key, HANDSHAKE_S)
                self._serve_partner(connection)
            except UnauthenticatedError as error:
                _log.warning("%s: %s", address, error)
            except OSError as error:
                _log.debug("the connection with %s has ended: %s", address, error)

    def _serve_partner(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while True:
            until_s = time.monotonic() + 2 * WAIT_S
            kind, *numbers = _REQUEST.unpack(receive_exactly(connection, _REQUEST.size, until_s))
            match kind:
                case b"s" if numbers[0] <= MAX_BYTES:
                    connection.sendall(_REPLY.pack(_YES, self._take(connection, numbers[0], buffer)))
                case b"w":
                    is_there = self._gate.wait(Step(*numbers), time.monotonic() + WAIT_S)
                    connection.sendall(_REPLY.pack(_YES if is_there else _NO, 0))
                case _:
                    raise ConnectionError(f"a request that is none of ours: {kind!r}")

    def _take(self, connection: socket.socket, n_bytes: int, buffer: memoryview) -> int:
        """Receive a transfer, and return how many bytes the NIC received meanwhile."""
        before = carried_bytes(self._interface, "rx")
        until_s, left = time.monotonic() + TRANSFER_DEADLINE_S, n_bytes
        while left:
            left -= receive_into(connection, buffer[: min(left, len(buffer))], until_s)
        return carried_bytes(self._interface, "rx") - before


class LinkCall:
    """A connection to a partner."""

    def __init__(self, own_address: str, partner: tuple[str, int], key: bytes) -> None:
        self._interface = interface_of(own_address)
        self._connection = socket.create_connection(partner, timeout=CONNECT_S, source_address=(own_address, 0))
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            call(self._connection, key, HANDSHAKE_S)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def wait(self, step: Step) -> bool:
        """Wait until the partner has reached a step; return whether it is there, and not past it."""
        self._connection.settimeout(WAIT_S)
        self._connection.sendall(_REQUEST.pack(_WAIT, *step))
        return self._reply(WAIT_S + CONNECT_S)[0] == _YES

    def send(self, n_bytes: int, repeats: int) -> Transfer:
        """Send so many bytes some times, and return the fastest."""
        retransmitted = retransmissions_of(self._connection)
        began_s = time.perf_counter()
        found: list[tuple[float, float]] = []
        while len(found) < repeats and time.perf_counter() - began_s < LONGEST_S:
            found.append(self._send_once(n_bytes))
        duration_s, foreign_share = min(found)
        return Transfer(duration_s, foreign_share, retransmissions_of(self._connection) - retransmitted)

    def _send_once(self, n_bytes: int) -> tuple[float, float]:
        before = carried_bytes(self._interface, "tx")
        began_s = time.perf_counter()
        until_s = time.monotonic() + TRANSFER_DEADLINE_S
        self._connection.settimeout(TRANSFER_DEADLINE_S)
        self._connection.sendall(_REQUEST.pack(_PUT, n_bytes, 0, 0))
        for at in range(0, n_bytes, _CHUNK_BYTES):
            self._connection.settimeout(max(1e-3, until_s - time.monotonic()))
            self._connection.sendall(_NOISE[: min(_CHUNK_BYTES, n_bytes - at)])
        _, received = self._reply(until_s - time.monotonic())
        duration_s = time.perf_counter() - began_s
        sent = carried_bytes(self._interface, "tx") - before
        return duration_s, max(foreign_share(sent, n_bytes), foreign_share(received, n_bytes))

    def _reply(self, within_s: float) -> tuple[bytes, int]:
        said, number = _REPLY.unpack(receive_exactly(self._connection, _REPLY.size, time.monotonic() + within_s))
        return said, number


# Meaningless, and of a kind that nothing on the way can compress.
_NOISE = memoryview(os.urandom(_CHUNK_BYTES))


def foreign_share(carried: int, own: int) -> float:
    """Return which share of a transfer's bytes a NIC carried in addition; headers and acknowledgements are not foreign.

    A loopback interface is no NIC, and counts nothing (``carried`` is 0).
    """
    return max(0.0, carried / own - 1 - _OWN_SHARE)
