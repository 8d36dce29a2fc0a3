"""CuPy's ``cupy.cuda.nccl``: communicators of two ranks, between which bytes really go.

They go over the network that ``NCCL_SOCKET_IFNAME`` asks for, or over loopback.
What sending takes is virtual: the bytes at the sender's rate. A board's
:attr:`~tests.fake_cupy.machine.Board.rail_fault` says what goes wrong, and where.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import threading
from typing import Any, NoReturn

from laggard.collectors.links.interfaces import address_on
from tests.fake_cupy.cuda.stream import stream_of
from tests.fake_cupy.machine import UNINITIALIZED, the_machine

__all__ = ["ID_BYTES", "STATUS", "NcclCommunicator", "NcclError", "get_unique_id", "get_version"]

NCCL_UINT8 = 1
ID_BYTES = 128
_ID = struct.Struct("!8s4sH")
_HEADER = struct.Struct("!Q")
STATUS = {
    2: "NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    6: "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error",
}
_listeners: dict[bytes, socket.socket] = {}


def __getattr__(name: str) -> Any:
    if name == "available":
        return the_machine().has_nccl
    raise AttributeError(f"the stand-in for CuPy has no cupy.cuda.nccl.{name}")


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(STATUS[status])


def get_version() -> int:
    return the_machine().nccl_version


def get_unique_id() -> bytes:
    """Listen for the other rank; the id is a secret, and where."""
    address = address_on(os.environ.get("NCCL_SOCKET_IFNAME", "lo"))
    listener = socket.create_server((address, 0))
    where = socket.inet_aton(address), listener.getsockname()[1]
    unique_id = _ID.pack(secrets.token_bytes(8), *where).ljust(ID_BYTES, b"\0")
    _listeners[unique_id] = listener
    return unique_id


class NcclCommunicator:
    """One of two ranks, on the device that is current when it is made."""

    def __init__(self, ndev: int, commId: bytes, rank: int) -> None:  # noqa: N803 - CuPy's name
        assert ndev == 2
        self._rank, self._board = rank, the_machine().board().used()
        self._is_alone = False
        if self._board.rail_fault == "never joins":
            _wait_for_ever()
        if self._board.rail_fault == "cannot join":
            raise NcclError(2)
        if rank == 0:
            self._other, _ = _listeners.pop(commId).accept()
            assert _received(self._other, ID_BYTES) == commId
        else:
            _, address, port = _ID.unpack(commId[: _ID.size])
            self._other = socket.create_connection((socket.inet_ntoa(address), port))
            self._other.sendall(commId)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        assert (datatype, peer) == (NCCL_UINT8, 1 - self._rank)
        if self._board.rail_fault == "hangs":
            _wait_for_ever()
        if self._board.rail_fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = self._board.memory_at(sendbuf, count)
        assert UNINITIALIZED not in numbers, "memory that nobody has set may hold what another process left there"
        try:
            self._other.sendall(_HEADER.pack(count))
            self._other.sendall(numbers.data)
        except ConnectionError:
            self._lose_the_other()
        self._board.works("nccl_send", stream_of(stream), count / self._board.rail_bytes_s)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        assert (datatype, peer) == (NCCL_UINT8, 1 - self._rank)
        try:
            (n_bytes,) = _HEADER.unpack(_received(self._other, _HEADER.size))
            assert n_bytes == count
            self._board.memory_at(recvbuf, count)[:] = memoryview(_received(self._other, count))
        except ConnectionError:
            self._lose_the_other()
        self._board.works("nccl_recv", stream_of(stream), 0.0)

    def check_async_error(self) -> None:
        if self._is_alone:
            raise NcclError(6)

    def _lose_the_other(self) -> NoReturn:
        """Go on waiting, as a kernel does."""
        self._is_alone = True
        _wait_for_ever()


def _wait_for_ever() -> NoReturn:
    while True:
        threading.Event().wait()


def _received(connection: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        part = connection.recv(min(1 << 20, n_bytes - len(data)))
        if not part:
            raise ConnectionResetError
        data += part
    return bytes(data)
