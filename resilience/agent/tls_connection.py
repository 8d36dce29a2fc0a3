"""A connection with TLS that a loop reads and writes: nobody waits for it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial

from laggard.resilience.agent.loop import Loop

_PIECE_BYTES = 1 << 16


class TLSConnection:
    """An encrypted connection. Everything happens in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        context: ssl.SSLContext,
        server_name: str | None,
        patience_s: float | None,
    ) -> None:
        self.take: Callable[[bytes], None] = lambda _: None  # called with what has come
        # Called, once, with why nothing more comes; not after `close`
        self.lost: Callable[[OSError], None] = lambda _: None
        self._loop = loop  # reads and writes it
        self._socket = connection
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=server_name is None, server_hostname=server_name
        )
        self._is_encrypted = False  # not before the other end has proved who it is
        self._is_closed = False
        self._early: list[bytes] = []
        self._unsent = bytearray()
        self._heard_s = time.monotonic()
        self.set_patience(patience_s)
        connection.settimeout(0.0)
        loop.watch(connection, selectors.EVENT_READ, self._on_ready)
        loop.call(partial(self._attempt, self._advance))  # a client speaks first

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has everything that was written."""
        return not self._early and not self._unsent

    def set_patience(self, patience_s: float | None) -> None:
        """Change for how long nothing may come."""
        self._patience_s = patience_s
        if patience_s is not None:
            self._loop.after(patience_s, partial(self._look, patience_s))

    def write(self, data: bytes) -> None:
        """Send this, once the other end has proved who it is; if the connection is lost, ``lost`` will say so."""
        if self._is_encrypted:
            self._attempt(partial(self._encrypt, data))
        else:
            self._early.append(data)

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.unwatch(self._socket)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _on_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._attempt(self._flush)
        if events & selectors.EVENT_READ:
            self._attempt(self._receive)

    def _attempt(self, step: Callable[[], None]) -> None:
        if self._is_closed:
            return
        try:
            step()
        except OSError as error:
            self.close()
            self._loop.call(partial(self.lost, error))  # whoever writes just now need not expect it

    def _look(self, patience_s: float) -> None:
        """Give the connection up if nothing has come for too long, or look again when that may be."""
        if self._is_closed or patience_s != self._patience_s:
            return
        left_s = self._heard_s + patience_s - time.monotonic()
        if left_s > 0:
            self._loop.after(left_s, partial(self._look, patience_s))
        else:
            self._attempt(self._give_up)

    def _give_up(self) -> None:
        raise TimeoutError(f"nothing has come for {self._patience_s:g} s")

    def _receive(self) -> None:
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        if not piece:
            raise ConnectionResetError("the other end has closed the connection")
        self._heard_s = time.monotonic()
        self._arrived.write(piece)
        self._advance()

    def _advance(self) -> None:
        if not self._is_encrypted and not self._shake_hands():
            return
        if data := self._decrypt():
            self.take(data)

    def _shake_hands(self) -> bool:
        """Go on with the handshake as far as possible, and return whether it is complete."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self._is_encrypted = True
            early, self._early = self._early, []
            for data in early:
                self._tls.write(data)
        self._flush()
        return self._is_encrypted

    def _decrypt(self) -> bytes:
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self._tls.read(_PIECE_BYTES):
                data += piece
            raise ConnectionResetError("the other end has ended the connection")
        return data

    def _encrypt(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def _flush(self) -> None:
        """Send as much as the kernel takes, and have the rest sent when it takes more."""
        was_waiting = bool(self._unsent)
        self._unsent += self._leaving.read()
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        if was_waiting != bool(self._unsent):
            writing = selectors.EVENT_WRITE if self._unsent else 0
            self._loop.watch(self._socket, selectors.EVENT_READ | writing, self._on_ready)
