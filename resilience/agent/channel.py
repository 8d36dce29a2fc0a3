"""A stream of bytes each way between the controller and an agent, over connections that may drop and be replaced.

Every piece has a number: its place in the stream. Each end says how many pieces it has received, with every piece that
it sends and at the start of every connection, and keeps those that the other end has not. So a new connection goes on
where the old one stopped: no piece is lost, and none comes twice.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from laggard.resilience.agent.loop import Loop
from laggard.resilience.agent.tls_connection import TLSConnection

_HEAD = struct.Struct(">QI")
"""How many pieces the sender has received, and the length of the piece that follows."""

_NO_PIECE = 0xFFFFFFFF
_LONGEST_BYTES = 1 << 16
# So much is received before it is confirmed by itself, rather than with the next piece that is sent.
_UNCONFIRMED_BYTES = 1 << 18


class Channel:
    """One end. Connections come by `attach`; they and what they bring are handled in the loop's thread."""

    def __init__(self, loop: Loop, unconnected: Callable[[Channel], None]) -> None:
        self._loop = loop  # of the connections
        # Called in the loop when there is no connection yet, or none any more: sees to it that there will be one, or
        # abandons the channel when there will not
        self._unconnected = unconnected
        self._connection: TLSConnection | None = None
        self._writing = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._unconfirmed: deque[bytes] = deque()  # sent, but the other end may not have it
        self._n_confirmed = 0  # pieces that the other end has
        self._n_received = 0
        self._since_confirmed_bytes = 0
        self._arrived = b""  # of a piece that is not complete
        self._untaken: list[bytes] = []
        self._take: Callable[[bytes], None] | None = None
        self._tell_end: Callable[[], None] = _nothing
        self._changed = threading.Condition()
        self.closed = False  # whether this end has been closed
        # When there was a connection last, or the channel was made, in monotonic seconds; while there is none
        self.unconnected_since_s = time.monotonic()
        self._has_ended = False  # nothing more comes
        self._is_over = False  # nor can anything more be sent
        loop.call(self.await_connection)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    @property
    def is_over(self) -> bool:
        """Whether there is none, and will be none: it was abandoned, or the other end is gone."""
        return self._is_over

    def read(self, take: Callable[[bytes], None], tell_end: Callable[[], None]) -> None:
        """Have something called, in the loop, with all that comes, what has come already included, and at the end."""
        self._loop.call(partial(self._begin_reading, take, tell_end))

    def pause(self, rest: bytes) -> None:
        """Keep what comes, and this before it, for whoever reads next; in the loop."""
        self._take, self._tell_end = None, _nothing
        self._untaken += [rest] if rest else []

    def write(self, data: bytes) -> int:
        """Send this, now or once there is a connection again; from any thread."""
        if self._is_over:
            raise BrokenPipeError(32, "the other end is gone")
        with self._writing:
            self._unsent.extend(data[at : at + _LONGEST_BYTES] for at in range(0, len(data), _LONGEST_BYTES))
        self._loop.call(self._send_on)
        return len(data)

    def flush(self) -> None:
        """Do nothing: every write is sent at once."""

    def close(self) -> None:
        """Tell the other end that nothing more comes; what it sends still arrives. Closing twice does nothing."""
        with self._writing:
            if not self.closed:
                self.closed = True
                self._unsent.append(b"")
        self._loop.call(self._send_on)

    def abandon(self) -> None:
        """Drop the connection, and take no other; from any thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._loop.call(self._end)

    def wait_for_end(self, deadline_s: float | None) -> bool:
        """Wait until nothing more comes, and what was written has left; return False at the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over or (self._has_ended and self._is_flushed), deadline_s)

    def detach(self) -> int:
        """Drop the connection, if there is one, and return how many pieces have been received; in the loop."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return self._n_received

    def attach(self, connection: TLSConnection, n_received: int, arrived: bytes) -> bool:
        """Go on over a new connection, and return whether that can be done; in the loop."""
        if self._is_over or not self._n_confirmed <= n_received <= self._n_confirmed + len(self._unconfirmed):
            connection.close()  # it belongs to nobody, or claims to have received what was never sent
            return False
        self._confirm(n_received)
        self._unsent.extendleft(reversed(self._unconfirmed))
        self._unconfirmed.clear()
        self._arrived = b""
        self._connection = connection
        connection.take, connection.lost = self._receive, partial(self._lose, connection)
        self._send_on()
        self._receive(arrived)
        return True

    @property
    def _is_flushed(self) -> bool:
        return not self._unsent and (self._connection is None or self._connection.is_flushed)

    def await_connection(self) -> None:
        """See to it that there will be a connection; in the loop."""
        if self._has_ended:
            self.abandon()  # nobody is left to connect to
        elif self._connection is None and not self._is_over:
            self._unconnected(self)

    def _lose(self, connection: TLSConnection, _: OSError) -> None:
        if self._connection is connection:
            self._connection = None
            self.unconnected_since_s = time.monotonic()
            self.await_connection()

    def _begin_reading(self, take: Callable[[bytes], None], tell_end: Callable[[], None]) -> None:
        untaken, self._untaken = self._untaken, []
        self._take, self._tell_end = take, tell_end
        for piece in untaken:
            self._pass_on(piece)
        if self._has_ended or self._is_over:
            self._tell_reader()

    def _receive(self, data: bytes) -> None:
        connection, self._arrived = self._connection, self._arrived + data
        while connection is self._connection and not self._is_over and len(self._arrived) >= _HEAD.size:
            n_confirmed, length = _HEAD.unpack_from(self._arrived)
            size_bytes = _HEAD.size + (0 if length == _NO_PIECE else length)
            if size_bytes > _HEAD.size + _LONGEST_BYTES:
                self.detach()  # a message of that length is none of ours
                self.await_connection()
                return
            if len(self._arrived) < size_bytes:
                return
            piece, self._arrived = self._arrived[_HEAD.size : size_bytes], self._arrived[size_bytes:]
            self._confirm(n_confirmed)
            if length != _NO_PIECE:
                self._n_received += 1
                self._pass_on(piece)
                self._confirm_to_other(len(piece))

    def _pass_on(self, piece: bytes) -> None:
        if not piece:
            self._has_ended = True
            self._tell_reader()
            self._tell_waiting()
        elif self._take is None:
            self._untaken.append(piece)
        else:
            self._take(piece)

    def _confirm_to_other(self, n_bytes: int) -> None:
        """Say what was received: at once if nobody reads yet, so that the other end hears something."""
        self._since_confirmed_bytes += n_bytes
        if self._since_confirmed_bytes > _UNCONFIRMED_BYTES or self._take is None:
            self._transmit(_NO_PIECE, b"")

    def _confirm(self, n_confirmed: int) -> None:
        while self._n_confirmed < n_confirmed and self._unconfirmed:
            self._unconfirmed.popleft()
            self._n_confirmed += 1

    def _send_on(self) -> None:
        """Send what was not sent over this connection yet."""
        while self._connection is not None and self._unsent:
            piece = self._unsent.popleft()
            self._unconfirmed.append(piece)
            self._transmit(len(piece), piece)
        self._tell_waiting()

    def _transmit(self, length: int, piece: bytes) -> None:
        self._since_confirmed_bytes = 0
        if self._connection is not None:
            self._connection.write(_HEAD.pack(self._n_received, length) + piece)

    def _tell_waiting(self) -> None:
        if self._has_ended:
            with self._changed:
                self._changed.notify_all()

    def _tell_reader(self) -> None:
        tell_end, self._tell_end = self._tell_end, _nothing
        tell_end()

    def _end(self) -> None:
        self.detach()
        self._tell_reader()


def _nothing() -> None:
    """Tell nobody."""
