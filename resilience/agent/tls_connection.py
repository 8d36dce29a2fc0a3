"""A connection with TLS that one thread may read from while another one writes, which ``ssl.SSLSocket`` forbids."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

__all__ = ["TLSConnection"]

_PIECE_BYTES = 1 << 16


class TLSConnection:
    """An encrypted connection.

    Parameters
    ----------
    connection
        A connected socket, which becomes this object's. Its timeout bounds every wait.
    context
        Certificates, and what is required of the other end.
    server_name
        The name or address that the server's certificate must be for; None: this end is the server.

    Raises
    ------
    OSError
        From the constructor if the other end does not prove who it is, from every method if the connection is lost.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._socket = connection
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=server_name is None, server_hostname=server_name
        )
        self._state = threading.Lock()
        self._sending = threading.Lock()  # what is encrypted first is sent first
        self._decrypted = b""
        try:
            self._shake_hands()
        except BaseException:
            self.close()
            raise

    def set_timeout(self, timeout_s: float) -> None:
        """Change the limit of every wait."""
        self._socket.settimeout(timeout_s)

    def read(self, size_bytes: int) -> bytes:
        """Return that many bytes; from one thread at a time. After a timeout the call can be made again."""
        self.await_bytes(size_bytes)
        data, self._decrypted = self._decrypted[:size_bytes], self._decrypted[size_bytes:]
        return data

    def await_bytes(self, size_bytes: int) -> bytes:
        """Return at least that many bytes without taking them, from the thread that reads."""
        while len(self._decrypted) < size_bytes:
            with self._state, contextlib.suppress(ssl.SSLWantReadError):
                piece = self._tls.read(_PIECE_BYTES)
                if not piece:
                    raise ConnectionResetError("the other end has closed the connection")
                self._decrypted += piece
                continue
            self._receive()
        return self._decrypted

    def write(self, data: bytes) -> None:
        """Send this; from one thread at a time. After a timeout the connection is of no use any more."""
        with self._sending:
            with self._state:
                self._tls.write(data)
            self._send()

    def close(self) -> None:
        """Close it; whoever waits for it gets an error. Closing twice does nothing."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                self._receive()
            else:
                self._send()
                return

    def _receive(self) -> None:
        piece = self._socket.recv(_PIECE_BYTES)
        if not piece:
            raise ConnectionResetError("the other end has closed the connection")
        with self._state:
            self._arrived.write(piece)

    def _send(self) -> None:
        with self._state:
            data = self._leaving.read()
        self._socket.sendall(data)
