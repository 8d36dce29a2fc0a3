"""Where the agents on other machines dial in: the controller's only port that faces the network.

Anybody who can reach it may connect, hold connections, and send anything. So whoever has not proved within a moment,
in one message of a fixed length, that it was invited costs a descriptor and nothing else: no thread, no TLS, and there
is room for a number of such connections (:mod:`laggard.system.unproven`). An agent proves itself with its first packet.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import logging
import os
import resource
import secrets
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import COUNT, GREETING, SECRET_BYTES, JoinToken, proof_of
from laggard.resilience.agent.loop import Loop
from laggard.resilience.agent.tls_connection import TLSConnection
from laggard.system.certificates import Authority, Certificate
from laggard.system.ports import listen
from laggard.system.unproven import MAX_UNPROVEN, Unproven

_log = logging.getLogger("laggard.resilience.allocation")

# So many connections are accepted, and handshakes begun, before the agents that are connected have their turn: a
# handshake takes about a millisecond, and a connection that nobody accepts has to be made again.
ACCEPTED_AT_ONCE, ADMITTED_AT_ONCE = 256, 16
PROOF_S = 3.0
# Of every step once an agent has proved itself; its node may be busy.
ANSWER_S = 15.0
LOOK_S = 0.5
_BACKLOG = 1 << 14  # the system's own limit is usually lower
_NO_DESCRIPTOR_S = 0.05
# An agent's connection, twice while it dials again, and some to spare; and pipes to what starts an agent by itself.
_DESCRIPTORS_TOGETHER, _DESCRIPTORS_ALONE = 3, 8
_OTHER_DESCRIPTORS = 512
# A member's id is the first half of its agents' ids: an agent that is started anew has another other half.
MEMBER_BYTES = 8


def allow_descriptors(n_agents: int) -> None:
    """Let this process open what so many agents need: the usual limit of 1,024 is enough for some hundred."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_DESCRIPTORS + _DESCRIPTORS_ALONE * n_agents
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))


def lack_of_descriptors(n_together: int, n_alone: int) -> str:
    """Return what the user is to be told if this process may not open what its agents need; else nothing."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _OTHER_DESCRIPTORS + _DESCRIPTORS_TOGETHER * n_together + _DESCRIPTORS_ALONE * n_alone
    if needed <= hard:
        return ""
    n_agents = n_together + n_alone
    return f"{n_agents} agents may need {needed} open files, and the limit is {hard} (ulimit -Hn): nodes may be lost"


Open = Callable[[str], Channel | None]
"""Returns the channel for an agent that dials from an address; none if it is not wanted now."""


@dataclass(slots=True)
class _Invited:
    """An agent that may dial."""

    secret: bytes
    open: Open
    used: set[bytes] = field(default_factory=set)  # so that nobody who has listened can send a greeting again


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection from somebody."""

    connection: socket.socket
    greeting: bytes = b""


class AgentListener:
    """Listens for agents, and carries their channels, in a thread of its own until it is closed."""

    def __init__(
        self,
        address: str,
        n_nodes: int = 1,
        proof_s: float = PROOF_S,
        port: int = 0,
        authority: Authority | None = None,
    ) -> None:
        self._proof_s = proof_s  # how long a connection may take to prove itself
        self.admitted_at_once = ADMITTED_AT_ONCE  # of those that have: the others are read in between
        self._address = address  # of this machine, at which the agents reach it
        self._n_nodes = n_nodes  # how many nodes the job has
        self._certificate = (authority or Authority()).issue(address)
        self._context = _server_context(self._certificate)
        self._listener = listen(address, _BACKLOG, port)
        self._listener.settimeout(0.0)
        self._invited: dict[bytes, _Invited] = {}
        self._members: dict[bytes, _Invited] = {}
        self._agents: dict[Channel, bytes] = {}
        self._unproven = Unproven[_Caller](self._drop, max(MAX_UNPROVEN, n_nodes // 8))
        self._arrivals: dict[bytes, socket.socket] = {}  # of agents that have proved themselves, the first one first
        self._loop = Loop("agents")
        self._loop.call(self._listen)

    def channel(self, may_return: Callable[[float], bool]) -> Channel:
        """Return a channel to an agent."""
        return Channel(self._loop, lambda channel: self._look_for(channel, may_return))

    def admit(self, channel: Channel) -> JoinToken:
        """Return a join token with which one agent, and nobody else, gets to a channel."""
        agent, secret = secrets.token_bytes(16), secrets.token_bytes(SECRET_BYTES)
        self._expect(agent, secret, channel)
        return self._token(agent.hex(), secret.hex())

    def token_for_all(self, channels: Mapping[str, Channel]) -> JoinToken:
        """Return one join token for the agents of many nodes, from which each derives its own."""
        together = self._token("", secrets.token_hex(SECRET_BYTES))
        for node, channel in channels.items():
            own = together.of_node(node)
            self._expect(bytes.fromhex(own.agent), bytes.fromhex(own.secret), channel)
        return together

    def admit_member(self, member: bytes, secret: bytes, arrive: Open) -> None:
        """Let agents in whose ids begin with a member's, once each of them has shown the member's secret."""
        self._members[member] = _Invited(secret, arrive)

    def withdraw(self, channel: Channel) -> None:
        """Let nobody get to a channel any more."""
        del self._invited[self._agents.pop(channel)]

    def close(self) -> None:
        """Listen no more, and leave the channels to themselves. Closing twice does nothing."""
        self._loop.call(self._end)
        self._loop.close()

    def _token(self, agent: str, secret: str) -> JoinToken:
        port = int(self._listener.getsockname()[1])
        return JoinToken(self._address, port, self._certificate.authority, agent, secret, self._n_nodes)

    def _expect(self, agent: bytes, secret: bytes, channel: Channel) -> None:
        self._invited[agent] = _Invited(secret, lambda _: channel)
        self._agents[channel] = agent

    def _look_for(self, channel: Channel, may_return: Callable[[float], bool]) -> None:
        if channel.is_connected:
            return
        if may_return(time.monotonic() - channel.unconnected_since_s):
            self._loop.after(LOOK_S, partial(self._look_for, channel, may_return))
        else:
            channel.abandon()

    def _listen(self) -> None:
        self._loop.watch(self._listener, selectors.EVENT_READ, self._accept)

    def _end(self) -> None:
        self._loop.unwatch(self._listener)
        self._listener.close()
        while self._unproven.drop_oldest():
            pass
        for connection in self._arrivals.values():
            connection.close()
        self._arrivals.clear()

    def _accept(self, _: int) -> None:
        for _ in range(ACCEPTED_AT_ONCE):  # and the channels have their turn
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is left: others of this process's will be free again
                _log.debug("a connection cannot be accepted: %s", error)
                if not self._unproven.drop_oldest():
                    self._loop.unwatch(self._listener)
                    self._loop.after(_NO_DESCRIPTOR_S, self._listen)
                return
            connection.settimeout(0.0)
            self._await_proof(_Caller(connection))

    def _await_proof(self, caller: _Caller) -> None:
        self._unproven.add(caller)
        self._loop.after(self._proof_s, partial(self._drop_late, caller))
        self._loop.watch(caller.connection, selectors.EVENT_READ, lambda _: self._read_greeting(caller))
        self._read_greeting(caller)  # an agent's is usually there by now

    def _read_greeting(self, caller: _Caller) -> None:
        if caller not in self._unproven:
            return  # it was dropped just now
        try:
            piece = caller.connection.recv(GREETING.size - len(caller.greeting))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        caller.greeting += piece
        if not piece:
            self._refuse(caller)
        elif len(caller.greeting) == GREETING.size:
            self._examine(caller)

    def _examine(self, caller: _Caller) -> None:
        agent, once, proof = GREETING.unpack(caller.greeting)
        invited = self._invitation(agent)
        if (
            invited is None
            or once in invited.used
            or not hmac.compare_digest(proof, proof_of(invited.secret, agent, once))
        ):
            self._refuse(caller)
            return
        invited.used.add(once)
        self._unproven.remove(caller)
        self._loop.unwatch(caller.connection)
        if not self._arrivals:
            self._loop.call(self._admit)
        former = self._arrivals.get(agent)
        self._arrivals[agent] = caller.connection
        if former is not None:
            former.close()  # the agent has given that one up, but it keeps its turn

    def _invitation(self, agent: bytes) -> _Invited | None:
        member = self._members.get(agent[:MEMBER_BYTES])
        if agent in self._invited or member is None:
            return self._invited.get(agent)
        return _Invited(member.secret, partial(self._take_in, agent, member))

    def _take_in(self, agent: bytes, member: _Invited, address: str) -> Channel | None:
        if agent not in self._invited:  # it has not dialled twice at once
            if (channel := member.open(address)) is None:
                return None
            self._expect(agent, member.secret, channel)
        return self._invited[agent].open(address)

    def _admit(self) -> None:
        """Begin TLS with some agents; the others wait for their turn, so that heartbeats are read in between."""
        for agent in list(itertools.islice(self._arrivals, self.admitted_at_once)):
            plain = self._arrivals.pop(agent)
            if (invited := self._invitation(agent)) is not None:
                with contextlib.suppress(OSError):  # it has gone again
                    self._begin(plain, invited)
                    continue
            plain.close()
        if self._arrivals:
            self._loop.call(self._admit)

    def _begin(self, plain: socket.socket, invited: _Invited) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = str(plain.getpeername()[0])
        _Admission(TLSConnection(self._loop, plain, self._context, None, ANSWER_S), invited, address)

    def _drop_late(self, caller: _Caller) -> None:
        if caller in self._unproven:
            self._refuse(caller)

    def _refuse(self, caller: _Caller) -> None:
        self._unproven.remove(caller)
        self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        self._loop.unwatch(caller.connection)
        caller.connection.close()


class _Admission:
    """A connection of an agent that still has to show its secret."""

    def __init__(self, connection: TLSConnection, invited: _Invited, address: str) -> None:
        self._connection = connection
        self._invited = invited
        self._address = address  # from where it dials
        self._heard = b""
        connection.take, connection.lost = self._take, self._give_up

    def _take(self, data: bytes) -> None:
        self._heard += data
        if len(self._heard) < SECRET_BYTES + COUNT.size:
            return
        secret, count = self._heard[:SECRET_BYTES], self._heard[SECRET_BYTES : SECRET_BYTES + COUNT.size]
        if not hmac.compare_digest(secret, self._invited.secret):
            self._turn_away("it does not know its secret")
            return
        if (channel := self._invited.open(self._address)) is None:
            self._turn_away("its place is taken")
            return
        (n_received,) = COUNT.unpack(count)
        self._connection.set_patience(None)
        self._connection.write(COUNT.pack(channel.detach()))
        if not channel.attach(self._connection, n_received, self._heard[SECRET_BYTES + COUNT.size :]):
            channel.await_connection()

    def _turn_away(self, why: str) -> None:
        self._connection.close()
        self._give_up(ConnectionError(why))

    def _give_up(self, error: OSError) -> None:
        _log.debug("an agent does not come through: %s", error)


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
