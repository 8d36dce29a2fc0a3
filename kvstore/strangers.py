"""What keeps strangers from costing a job much at a port that they can reach.

A port has two queues: one for connections from the job's own addresses, one for all others. The second is short, and
taken from slowly, so that the kernel drops most of a flood and no process of ours hears of it. A node that calls from
an address that nobody has heard of has to stand in that queue until it has proved itself once.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Collection, Iterator

__all__ = ["STRANGERS_BACKLOG", "STRANGERS_PAUSE_S", "Places", "SecondQueue", "TwoQueues", "program_for"]

STRANGERS_PAUSE_S = 0.05
"""Between two connections from unknown addresses."""
STRANGERS_BACKLOG = 16

Instruction = tuple[int, int, int, int]

# Classic BPF. What it returns is the number of the socket that takes the connection, in the order of their `listen`.
_SO_ATTACH_REUSEPORT_CBPF = 51
_SENDER = 0xFFF0000C  # 12 bytes into the header of the network layer
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_KNOWN, _STRANGER = 0, 1
_MAX_INSTRUCTIONS = 4096


def program_for(addresses: Collection[str]) -> list[Instruction]:
    """Return the program that sends known IPv4 addresses to the first queue, and others to the second.

    All are sent to the first one if there are more addresses than the kernel takes.
    """
    program: list[Instruction] = [(_LOAD, 0, 0, _SENDER)]
    for address in sorted(addresses):
        (number,) = struct.unpack("!I", socket.inet_aton(address))
        program += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _KNOWN)]
    program.append((_RETURN, 0, 0, _STRANGER))
    return program if len(program) <= _MAX_INSTRUCTIONS else [(_RETURN, 0, 0, _KNOWN)]


def _divert(listener: socket.socket, known: Collection[str]) -> None:
    program = program_for(known)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    value = struct.pack("HP", len(program), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, value)


class SecondQueue:
    """Another listener at a port that has one: from now on, all but known addresses come to it.

    Parameters
    ----------
    first
        The other one, for IPv4. It may be closed here if somebody else has it open.
    known
        Addresses that go on coming to the first one.

    Attributes
    ----------
    listener : socket.socket
        What to accept from.

    Raises
    ------
    OSError
        If the kernel does not let us; then everything comes to the first one, as before.
    """

    def __init__(self, first: socket.socket, known: Collection[str]) -> None:
        self._lock = threading.Lock()
        self._known = set(known)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.listener = socket.socket(first.family)
        try:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind(first.getsockname())
            self.listener.listen(STRANGERS_BACKLOG)
            _divert(self.listener, self._known)
        except BaseException:
            self.listener.close()
            raise

    def admit(self, *addresses: str) -> None:
        """Let further addresses use the first queue, such as that of somebody who has proved himself."""
        with self._lock:
            if not self._known.issuperset(addresses):
                self._known.update(addresses)
                with contextlib.suppress(OSError):  # it is closed
                    _divert(self.listener, self._known)

    def close(self) -> None:
        """Listen no more; whoever waits in ``accept`` gets an `OSError`."""
        _close(self.listener)


class TwoQueues:
    """A listening port with a queue for known addresses, and one for all others.

    Parameters
    ----------
    address
        Where to listen; the kernel chooses the port.
    known
        Addresses of the job's nodes.
    backlog
        How many connections from them may wait.

    Attributes
    ----------
    queues : list of tuple of socket.socket and float
        What to accept from, and for how long to pause after each connection, in seconds.
    port : int
    """

    def __init__(self, address: str, known: Collection[str] = (), backlog: int = 128) -> None:
        first = socket.create_server((address, 0), backlog=backlog)
        self.port = int(first.getsockname()[1])
        self.queues = [(first, 0.0)]
        self._second: SecondQueue | None = None
        with contextlib.suppress(OSError):  # this kernel has no second queue
            self._second = SecondQueue(first, {address, *known})
            self.queues.append((self._second.listener, STRANGERS_PAUSE_S))

    def admit(self, *addresses: str) -> None:
        """Let further addresses use the first queue, such as that of somebody who has proved himself."""
        if self._second is not None:
            self._second.admit(*addresses)

    def close(self) -> None:
        """Listen no more; whoever waits in ``accept`` gets an `OSError`."""
        for listener, _ in reversed(self.queues):
            _close(listener)


def _close(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


class Places:
    """Room for some connections that have not proved themselves: when it is full, the oldest makes place.

    So those who hold connections keep nobody out.

    Parameters
    ----------
    count
        How many there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[int, socket.socket] = {}  # the oldest first
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken_by(self, connection: socket.socket) -> Iterator[None]:
        """Have a place until the end of the block, or until somebody else needs it: then the connection is shut."""
        with self._lock:
            if len(self._taken) >= self._count:
                oldest = self._taken.pop(next(iter(self._taken)))
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._taken[id(connection)] = connection
        try:
            yield
        finally:
            with self._lock:
                self._taken.pop(id(connection), None)
