"""A stream of bytes each way between the controller and an agent, over connections that may drop and be replaced.

Every piece has a number: its place in the stream. Each end says how many pieces it has received, with every piece that
it sends and at the start of every connection, and keeps those that the other end has not. So a new connection goes on
where the old one stopped: no piece is lost, and none comes twice.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from laggard.resilience.agent.tls_connection import TLSConnection

__all__ = ["Channel"]

_HEAD = struct.Struct(">QI")
"""How many pieces the sender has received, and the length of the piece that follows."""

_NO_PIECE = 0xFFFFFFFF
_LONGEST_BYTES = 1 << 16
# So much is received before it is confirmed by itself, rather than with the next piece that is sent.
_UNCONFIRMED_BYTES = 1 << 18


class Channel:
    """One end. The other one has got another connection to this one, or gets one by `attach`.

    Parameters
    ----------
    reconnect
        Called by `receive` whenever there is no connection: waits a little for one or makes one, and returns whether
        there may still be one.
    gives_up
        Whether a connection through which nothing has come for its timeout is dropped, not waited for.
    """

    def __init__(self, reconnect: Callable[[Channel], bool], *, gives_up: bool = False) -> None:
        self._reconnect = reconnect
        self._gives_up = gives_up
        self._connection: TLSConnection | None = None
        self._changed = threading.Condition()
        self._sending = threading.RLock()
        self._unconfirmed: deque[bytes] = deque()
        self._n_confirmed = 0  # pieces that the other end has
        self._n_sent = 0  # of those over this connection, and of all that need not be
        self._n_received = 0
        self._since_confirmed_bytes = 0
        self._unread = b""
        self.closed = False
        self._has_ended = False  # nothing more comes
        self._is_over = False  # nor can anything more be sent

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def wait(self, deadline_s: float) -> None:
        """Wait until there is a connection, or will be none any more, or the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._connection is not None or self._is_over, deadline_s)

    def detach(self) -> int:
        """Drop the connection, if there is one, and return how many pieces have been received: it stays so."""
        with self._changed:
            connection, self._connection = self._connection, None
            n_received = self._n_received
        if connection is not None:
            connection.close()
        return n_received

    def attach(self, connection: TLSConnection, n_received: int) -> None:
        """Go on over a new connection.

        Parameters
        ----------
        connection
            To the other end, which knows what `detach` has returned.
        n_received
            How many pieces the other end has received.

        Raises
        ------
        ConnectionError
            If it cannot have received so many, or so few.
        """
        with self._sending:
            if self._is_over:
                connection.close()
                return
            if not self._n_confirmed <= n_received <= self._n_confirmed + len(self._unconfirmed):
                connection.close()
                raise ConnectionError(f"the other end claims to have received {n_received} messages")
            self._confirm(n_received)
            self._n_sent = n_received
            with self._changed:
                self._connection = connection
                self._changed.notify_all()
        # Not here, where nobody may be reading: if both ends only write, neither gets on.
        threading.Thread(target=self._send_on, name="channel-resend", daemon=True).start()

    def write(self, data: bytes) -> int:
        """Send this, now or once there is a connection again; from any thread.

        Raises
        ------
        BrokenPipeError
            If the other end is gone for good.
        """
        if self._is_over:
            raise BrokenPipeError(32, "the other end is gone")
        with self._sending:
            for at in range(0, len(data), _LONGEST_BYTES):
                self._unconfirmed.append(data[at : at + _LONGEST_BYTES])
            self._send_on()
        return len(data)

    def flush(self) -> None:
        """Do nothing: every write is sent at once."""

    def close(self) -> None:
        """Tell the other end that nothing more comes; what it sends still arrives. Closing twice does nothing."""
        with self._sending:
            if not self.closed:
                self.closed = True
                self._unconfirmed.append(b"")
                self._send_on()

    def abandon(self) -> None:
        """Drop the connection, and take no other."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self.detach()

    def wait_for_end(self, deadline_s: float | None) -> bool:
        """Wait until nothing more comes, while another thread receives; return False at the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_ended or self._is_over, deadline_s)

    def receive(self) -> bytes:
        """Return the next bytes from the other end; none at its end, or if it is gone. From one thread."""
        while not (self._has_ended or self._is_over):
            if (connection := self._connection) is None:
                if not self._reconnect(self):
                    self.abandon()
                continue
            try:
                if (piece := self._piece_from(connection)) is not None:
                    if not piece:
                        self._end()
                    return piece
            except TimeoutError:
                if self._gives_up:
                    self._drop(connection)
            except OSError:
                self._drop(connection)
        return b""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines from the other end."""
        while data := self.receive():
            *lines, self._unread = (self._unread + data).split(b"\n")
            yield from lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _piece_from(self, connection: TLSConnection) -> bytes | None:
        """Return the next piece of a connection; None if there was none, or the connection was replaced meanwhile."""
        n_confirmed, length = _HEAD.unpack_from(connection.await_bytes(_HEAD.size))
        if _LONGEST_BYTES < length < _NO_PIECE:
            raise ConnectionError(f"a message of {length} bytes is none of ours")
        size_bytes = _HEAD.size + (0 if length == _NO_PIECE else length)
        connection.await_bytes(size_bytes)
        with self._changed:
            if self._connection is not connection:
                return None  # it will be sent again
            piece = connection.read(size_bytes)[_HEAD.size :]
            if length != _NO_PIECE:
                self._n_received += 1
        self._confirm(n_confirmed)
        self._since_confirmed_bytes += len(piece)
        # Without waiting for whoever sends just now: what that sends next says it, too.
        if self._since_confirmed_bytes > _UNCONFIRMED_BYTES and self._sending.acquire(blocking=False):
            try:
                self._transmit(self._head(_NO_PIECE))
            finally:
                self._sending.release()
        return None if length == _NO_PIECE else piece

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _confirm(self, n_confirmed: int) -> None:
        with self._changed:
            while self._n_confirmed < n_confirmed and self._unconfirmed:
                self._unconfirmed.popleft()
                self._n_confirmed += 1

    def _send_on(self) -> None:
        """Send what was not sent over this connection yet."""
        with self._sending:
            while self._connection is not None:
                with self._changed:
                    at = self._n_sent - self._n_confirmed
                    if at == len(self._unconfirmed):
                        return
                    piece = self._unconfirmed[at]
                self._n_sent += 1
                self._transmit(self._head(len(piece)) + piece)

    def _head(self, length: int) -> bytes:
        self._since_confirmed_bytes = 0
        return _HEAD.pack(self._n_received, length)

    def _transmit(self, data: bytes) -> None:
        if (connection := self._connection) is not None:
            try:
                connection.write(data)
            except OSError:
                self._drop(connection)

    def _drop(self, connection: TLSConnection) -> None:
        with self._changed:
            if self._connection is connection:
                self._connection = None
        with contextlib.suppress(OSError):
            connection.close()
