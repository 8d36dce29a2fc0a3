"""The queue for strangers at the state server's port: the server takes everything, so strangers come to us first.

A stranger may be one of ours: somebody who looks at the job from a login node, or a node that calls from an address
that nobody has heard of. So what strangers send is passed on to the server, a few at a time, and whoever has logged in
within some seconds comes to the server itself from then on. The server's list of its clients says who has: it shows
another name than the default user's only then, with TLS too, of which we see nothing.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import Any, cast

import redis

from laggard.kvstore.borrowed_sockets import second_queues
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.strangers import STRANGERS_PAUSE_S, Places, SecondQueue

__all__ = ["ServerGuard", "user_of"]

_log = logging.getLogger(__name__)

PLACES = 16
PROOF_S = 3.0
# Between two looks at the server's clients, of which there may be thousands.
ASK_S = 0.5
_ANSWER_S = 1.0
_CHUNK_BYTES = 1 << 16
_DEFAULT_USER = "default"


class ServerGuard:
    """Stands at a state server's port, from each `stand` to the next `withdraw`.

    Parameters
    ----------
    endpoint
        The server's.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._place = endpoint.host, endpoint.port
        self._known = {endpoint.host}
        self._client = endpoint.connect(timeout_s=_ANSWER_S)
        self._queue: SecondQueue | None = None
        self._places = Places(PLACES)
        self._changing = threading.Lock()
        self._asking = threading.Lock()
        self._asked_s = 0.0
        self._clients = b""
        self._own_calls: set[tuple[str, int]] = set()

    def stand(self, pid: int) -> None:
        """Take strangers' connections in place of this process, the server. Where that is impossible, do nothing."""
        with self._changing:
            try:
                (self._queue,) = second_queues(pid, self._known)
            except (OSError, ValueError) as error:  # this kernel does not allow it, or it does not listen on IPv4
                _log.debug("the state server takes strangers' connections itself: %s", error)
                return
            threading.Thread(target=self._accept, args=(self._queue.listener,), name="guard", daemon=True).start()

    def withdraw(self) -> None:
        """Leave the port, since the server has ended: its successor could not listen there."""
        with self._changing:
            if self._queue is not None:
                self._queue.close()
            self._queue = None

    def admit(self, *addresses: str) -> None:
        """Let connections from these addresses, such as those of the job's nodes, come to the server itself."""
        with self._changing:
            self._known.update(addresses)
            if self._queue is not None:
                self._queue.admit(*addresses)

    def close(self) -> None:
        """Withdraw for good."""
        self.withdraw()
        self._client.close()

    def _accept(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            with contextlib.suppress(OSError):  # it is closed, or no descriptor is left for a while
                stranger, where = listener.accept()
                threading.Thread(target=self._serve, args=(stranger, where), name="stranger", daemon=True).start()
            time.sleep(STRANGERS_PAUSE_S)

    def _serve(self, stranger: socket.socket, where: tuple[str, int]) -> None:
        if where in self._own_calls:
            stranger.close()  # the server has ended, so that we have called ourselves
            return
        with stranger, socket.socket() as server, contextlib.ExitStack() as stack:
            try:
                server.bind((self._place[0], 0))
                own = server.getsockname()
                self._own_calls.add(own)
                stack.callback(self._own_calls.discard, own)
                server.connect(self._place)
            except OSError as error:
                _log.debug("the state server cannot be reached for a stranger: %s", error)
                return
            self._pass_on(stranger, where[0], server, own)

    def _pass_on(self, stranger: socket.socket, address: str, server: socket.socket, own: tuple[str, int]) -> None:
        """Pass everything on until either end closes; or a little while, for somebody who does not log in."""
        copies = [
            threading.Thread(target=_copy, args=ends, name="stranger", daemon=True)
            for ends in ((stranger, server), (server, stranger))
        ]
        for copy in copies:
            copy.start()
        with self._places.taken_by(stranger):
            if self._logs_in(own, copies[0]):
                self.admit(address)
            else:
                _shut(stranger, server)
        for copy in copies:
            copy.join()

    def _logs_in(self, own: tuple[str, int], copy: threading.Thread) -> bool:
        until_s = time.monotonic() + PROOF_S
        while copy.is_alive() and time.monotonic() < until_s:
            copy.join(ASK_S)
            if copy.is_alive() and user_of(own, self._list_clients()) not in ("", _DEFAULT_USER):
                return True
        return False

    def _list_clients(self) -> bytes:
        """Return the server's list of its clients, no older than those who ask about theirs."""
        with self._asking:
            if time.monotonic() - self._asked_s >= ASK_S:
                with contextlib.suppress(redis.RedisError):  # it is busy; those who wait for it are given up
                    # In two words, so that the library does not read thousands of lines for one of them.
                    self._clients = cast("Any", self._client).execute_command("CLIENT", "LIST")
                self._asked_s = time.monotonic()
            return self._clients


def user_of(address: tuple[str, int], clients: bytes) -> str:
    """Return the user of the client that calls from an address, as a server's list of its clients has it. Pure.

    Empty if it is not in the list. No field of a line has spaces, whatever a client has called itself.
    """
    line = clients.partition(b" addr=%s:%d " % (address[0].encode(), address[1]))[2].partition(b"\n")[0]
    return next((field[5:].decode() for field in line.split(b" ") if field.startswith(b"user=")), "")


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)
    _shut(source, sink)


def _shut(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
