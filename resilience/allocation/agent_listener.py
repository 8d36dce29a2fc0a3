"""Where the agents on other machines dial in: the controller's only port that faces the network.

Anybody who can reach it may connect, hold connections, and send anything. So whoever has not proved within a moment,
in one message of a fixed length, that it was invited costs a descriptor and nothing else: no thread, no TLS. There is
room for a number of such connections; when it is full the oldest one makes place, so that those who do nothing keep
nobody out. An agent proves itself with the first packet that it sends.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import resource
import secrets
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from laggard.kvstore.certificates import Authority, Certificate
from laggard.kvstore.strangers import STRANGERS_PAUSE_S, TwoQueues
from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import COUNT, GREETING, SECRET_BYTES, Invitation, proof_of
from laggard.resilience.agent.tls_connection import TLSConnection

__all__ = ["AgentListener", "Callers", "allow_descriptors"]

_log = logging.getLogger("laggard.resilience.allocation")

MAX_UNPROVEN = 128
# Handshakes at once. A thousand side by side would all take too long.
MAX_TURNS = 16
PROOF_S = 3.0
# Of every step once an agent has proved itself.
ANSWER_S = 5.0
# Of a write to an agent that is connected, or of a look whether it still is.
PROGRESS_S = 2.0
_BACKLOG = 1024
_NO_DESCRIPTOR_S = 0.05
# Pipes to what starts the agent, and its connection, twice while it dials again.
_DESCRIPTORS_PER_AGENT = 8
_OTHER_DESCRIPTORS = 512


def allow_descriptors(n_agents: int) -> str:
    """Let this process open what so many agents need: the usual limit of 1,024 is enough for some hundred.

    Parameters
    ----------
    n_agents
        How many will dial.

    Returns
    -------
    str
        What the user is to be told if the hard limit may be too low; else empty.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_DESCRIPTORS + _DESCRIPTORS_PER_AGENT * n_agents
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    if needed <= hard:
        return ""
    return f"{n_agents} agents may need {needed} open files, and the limit is {hard} (ulimit -Hn): nodes may be lost"


@dataclass(slots=True)
class _Invited:
    """An agent that may dial."""

    secret: bytes
    channel: Channel
    used: set[bytes] = field(default_factory=set)  # so that nobody who has listened can send a greeting again
    admitting: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class _Unproven:
    """A connection from somebody."""

    connection: socket.socket
    since_s: float
    greeting: bytes = b""


class Callers:
    """The addresses from which a job's nodes call: those by which they are reached, and those from which agents dial.

    Parameters
    ----------
    nodes
        The former.
    """

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self._addresses = set(nodes)
        self._admitting: list[Callable[..., None]] = []
        self._changing = threading.Lock()

    def add(self, address: str) -> None:
        """Have all who follow admit a further address."""
        with self._changing:
            if address not in self._addresses:
                self._addresses.add(address)
                for admit in self._admitting:
                    admit(address)

    def follow(self, admit: Callable[..., None]) -> None:
        """Call this with the addresses that are known, and with each later one."""
        with self._changing:
            self._admitting.append(admit)
            admit(*self._addresses)


class AgentListener:
    """Listens for agents, in a thread of its own, until it is closed.

    Parameters
    ----------
    address
        Of this machine, at which the agents reach it.
    callers
        From where they dial: others wait in the queue for strangers until they have proved themselves.
    """

    def __init__(self, address: str, callers: Callers) -> None:
        self._address = address
        self._callers = callers
        self._certificate = Authority().issue(address)
        self._context = _server_context(self._certificate)
        self._queues = TwoQueues(address, backlog=_BACKLOG)
        callers.follow(self._queues.admit)
        self._resting: dict[socket.socket, float] = {}  # until when nobody is taken from which queue
        self._invited: dict[bytes, _Invited] = {}
        self._turns = threading.BoundedSemaphore(MAX_TURNS)
        self._unproven: dict[int, _Unproven] = {}  # by descriptor, the oldest first
        self._woken, self._wake = socket.socketpair()
        self._closed = threading.Event()
        self._selector = selectors.DefaultSelector()
        for listener, pause_s in self._queues.queues:
            listener.settimeout(0.0)
            self._selector.register(listener, selectors.EVENT_READ, pause_s)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="agent-listener", daemon=True)
        self._thread.start()

    def invite(self, channel: Channel) -> Invitation:
        """Return an invitation with which one agent, and nobody else, gets to a channel."""
        agent, secret = secrets.token_bytes(16), secrets.token_bytes(SECRET_BYTES)
        self._invited[agent] = _Invited(secret, channel)
        return Invitation(self._address, self._queues.port, self._certificate.authority, agent.hex(), secret.hex())

    def invite_together(self, channels: Mapping[str, Channel]) -> Invitation:
        """Return one invitation for the agents of many nodes, from which each derives its own."""
        together = Invitation(
            self._address, self._queues.port, self._certificate.authority, "", secrets.token_hex(SECRET_BYTES)
        )
        for node, channel in channels.items():
            own = together.of_node(node)
            self._invited[bytes.fromhex(own.agent)] = _Invited(bytes.fromhex(own.secret), channel)
        return together

    def withdraw(self, channel: Channel) -> None:
        """Let nobody get to a channel any more."""
        for agent in [agent for agent, invited in list(self._invited.items()) if invited.channel is channel]:
            del self._invited[agent]

    def close(self) -> None:
        """Listen no more. Closing twice does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            self._wake.send(b"x")
            self._thread.join()
            self._wake.close()

    def _listen(self) -> None:
        with contextlib.closing(self._queues), self._woken, self._selector:
            while not self._closed.is_set():
                for key, _ in self._selector.select(self._wait_s()):
                    if key.data is not None:
                        self._accept(cast("socket.socket", key.fileobj), key.data)
                    elif (unproven := self._unproven.get(key.fd)) is not None:
                        self._read_greeting(unproven)
                self._drop_late()
                self._end_rests()
            while self._unproven:
                self._drop(next(iter(self._unproven.values())))

    def _wait_s(self) -> float | None:
        """Return how long nothing is to do unless somebody calls."""
        due_s = [unproven.since_s + PROOF_S for unproven in islice(self._unproven.values(), 1)]
        due_s += self._resting.values()
        return max(0.0, min(due_s) - time.monotonic()) if due_s else None

    def _end_rests(self) -> None:
        for listener, until_s in list(self._resting.items()):
            if until_s <= time.monotonic():
                del self._resting[listener]
                self._selector.register(listener, selectors.EVENT_READ, STRANGERS_PAUSE_S)

    def _accept(self, listener: socket.socket, pause_s: float) -> None:
        if pause_s:
            self._selector.unregister(listener)
            self._resting[listener] = time.monotonic() + pause_s
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left: others of this process's will be free again
            _log.debug("a connection cannot be accepted: %s", error)
            if self._unproven:
                self._drop(next(iter(self._unproven.values())))
            else:
                self._closed.wait(_NO_DESCRIPTOR_S)
            return
        connection.settimeout(0.0)
        if len(self._unproven) >= MAX_UNPROVEN:
            self._drop(next(iter(self._unproven.values())))
        unproven = self._unproven[connection.fileno()] = _Unproven(connection, time.monotonic())
        self._selector.register(connection, selectors.EVENT_READ)
        self._read_greeting(unproven)  # an agent's is usually there by now

    def _read_greeting(self, unproven: _Unproven) -> None:
        try:
            piece = unproven.connection.recv(GREETING.size - len(unproven.greeting))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        unproven.greeting += piece
        if not piece:
            self._drop(unproven)
        elif len(unproven.greeting) == GREETING.size:
            self._examine(unproven)

    def _examine(self, unproven: _Unproven) -> None:
        agent, once, proof = GREETING.unpack(unproven.greeting)
        invited = self._invited.get(agent)
        if (
            invited is None
            or once in invited.used
            or not hmac.compare_digest(proof, proof_of(invited.secret, agent, once))
        ):
            self._drop(unproven)
            return
        invited.used.add(once)
        self._selector.unregister(unproven.connection)
        del self._unproven[unproven.connection.fileno()]
        threading.Thread(target=self._admit, args=(unproven.connection, invited), name="admit", daemon=True).start()

    def _admit(self, plain: socket.socket, invited: _Invited) -> None:
        with self._turns:
            self._take_in(plain, invited)

    def _take_in(self, plain: socket.socket, invited: _Invited) -> None:
        plain.settimeout(ANSWER_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection = TLSConnection(plain, self._context)
        except OSError as error:
            _log.debug("an agent does not come through: %s", error)
            return
        try:
            if not hmac.compare_digest(connection.read(SECRET_BYTES), invited.secret):
                raise ConnectionError("it does not know its secret")
            self._callers.add(plain.getpeername()[0])
            (n_received,) = COUNT.unpack(connection.read(COUNT.size))
            connection.set_timeout(PROGRESS_S)
            with invited.admitting:
                connection.write(COUNT.pack(invited.channel.detach()))
                invited.channel.attach(connection, n_received)
        except OSError as error:
            _log.debug("an agent does not come through: %s", error)
            connection.close()

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for unproven in list(self._unproven.values()):
            if unproven.since_s + PROOF_S > now_s:
                return
            self._drop(unproven)

    def _drop(self, unproven: _Unproven) -> None:
        self._selector.unregister(unproven.connection)
        del self._unproven[unproven.connection.fileno()]
        unproven.connection.close()


def _server_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody resumes a session
    with contextlib.ExitStack() as stack:
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)  # the key is never on a disk
        stack.callback(os.close, descriptor)
        os.write(descriptor, (certificate.certificate + certificate.key).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context
