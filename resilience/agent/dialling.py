"""How an agent on another machine reaches the controller: it dials, over TLS, and proves that it was invited.

The controller sends the join token to the standard input of the process that ``srun`` or ``ssh`` starts. That pipe
carries nothing else; its end says that the controller is gone, should the connection be gone, too.

Before TLS begins the agent proves that it knows its secret, in one message of a fixed length that costs nothing to
check: whoever does not know it keeps nobody busy. Within TLS it shows the secret itself, to the controller only.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import random
import secrets
import selectors
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from laggard.resilience.agent import own_name
from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.loop import Loop
from laggard.resilience.agent.tls_connection import TLSConnection
from laggard.resilience.wire import decode, encode
from laggard.resilience.wire.handshake import CannotDial
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from laggard.system.ports import family_of

_log = logging.getLogger("laggard.resilience.agent")

SECRET_BYTES = 32
GREETING = struct.Struct(">16s16s32s")
"""The agent's id, a number that it uses once, and the proof that it knows its secret."""

COUNT = struct.Struct(">Q")
"""How many messages this end has received."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 2.0
# The kernel connects however busy the controller is: what takes longer is lost on the way.
CONNECT_S = 4.0
LAST_WORDS_S = 1.0
_LONGEST_BYTES = 1 << 16
_OTHER_CONTROLLER = ConnectionError("another controller answers than the one that the channel led to")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What an agent needs to dial."""

    address: str  # where the controller listens
    port: int
    # Certificate, as PEM text, that the controller's certificate is verified against
    authority: str = field(repr=False)
    # The agent's id, as hexadecimal digits; empty: of all agents that were started together, and each derives its own
    # (`of_node`)
    agent: str
    secret: str = field(repr=False)
    n_nodes: int = 1  # how many nodes the job has, whose agents all dial
    own: str = ""  # the address to dial from; empty: whichever the system chooses

    def of_node(self, name: str) -> JoinToken:
        """Return a node's own join token, derived from one for all. Pure."""
        secret = bytes.fromhex(self.secret)
        agent, own = (hmac.digest(secret, use + name.encode(), hashlib.sha256) for use in (b"agent ", b"secret "))
        return replace(self, agent=agent[:16].hex(), secret=own.hex())


def proof_of(secret: bytes, agent: bytes, once: bytes) -> bytes:
    """Return the proof that goes with an agent's id and a number that it uses once. Pure."""
    return hmac.digest(secret, b"laggard agent" + agent + once, hashlib.sha256)


def read_join_token(descriptor: int) -> JoinToken:
    """Read the join token, the only line that ever comes through that pipe."""
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(descriptor, _LONGEST_BYTES)
        if not piece:
            raise EOFError("the controller was gone before it had sent a join token")
        text += piece
    return decode(text, JoinToken)


class Dialler:
    """An agent's end of a channel to the controller: dials whenever there is no connection."""

    def __init__(self, loop: Loop, token: JoinToken, start_up: int, *, is_tied: bool = False) -> None:
        self._loop = loop  # in which it does so
        self._token = token  # from the controller
        self._start_up = start_up  # the pipe that it came through: once that has ended, too, the controller is gone
        self._is_tied = is_tied  # whether the agent ends with that pipe, even if it is connected
        self._is_alone = False
        self._was_let_in = False
        self._n_failures = 0
        self._has_complained = is_tied  # what has started it says so itself
        self._is_waiting = False
        self.channel = Channel(loop, self._dial)  # what the agent and the controller say to each other
        loop.call(partial(loop.watch, start_up, selectors.EVENT_READ, self._read_start_up))

    def _read_start_up(self, _: int) -> None:
        if not os.read(self._start_up, _LONGEST_BYTES):
            self._loop.unwatch(self._start_up)
            self._is_alone = True
            if self._is_waiting or self._is_tied:
                self.channel.abandon()

    def _dial(self, channel: Channel) -> None:
        self._is_waiting = False
        if self._is_alone:
            channel.abandon()
        else:
            _Attempt(self._loop, self._token, channel, partial(self._settle, channel), self._complain)

    def _complain(self) -> None:
        """Have the controller know, by the way on which it has started us, that it cannot be reached."""
        if not self._has_complained:
            self._has_complained = True
            sys.stderr.buffer.write(encode(CannotDial(own_name(), self._token.port)))
            sys.stderr.buffer.flush()

    def _settle(self, channel: Channel, error: OSError | None) -> None:
        """Dial again after a while if an attempt has failed, and after a longer one if it was not the first."""
        if error is None:
            self._n_failures, self._was_let_in = 0, True
            self._has_complained = True  # there is nothing to complain of any more
            return
        if self._is_tied and (error is _OTHER_CONTROLLER or self._is_refused(error)):
            channel.abandon()  # what has started the agent finds the next controller
            return
        _log.debug("the controller cannot be reached: %s", error)
        self._n_failures += 1
        self._is_waiting = True
        wait_s = min(FIRST_WAIT_S * 2**self._n_failures, LONGEST_WAIT_S)
        self._loop.after(wait_s * random.uniform(0.5, 1.0), partial(self._dial, channel))

    def _is_refused(self, error: OSError) -> bool:
        """Return whether nobody listens any more where the controller did as long as it lived."""
        return self._was_let_in and isinstance(error, ConnectionRefusedError)


class _Attempt:
    """One attempt to reach the controller: connects, greets, and shows the secret."""

    def __init__(
        self,
        loop: Loop,
        token: JoinToken,
        channel: Channel,
        settle: Callable[[OSError | None], None],
        complain: Callable[[], None],
    ) -> None:
        self._loop = loop  # as of the `Dialler`
        self._token = token
        self._timing = HeartbeatTiming(token.n_nodes)
        self._channel = channel  # which gets the connection
        self._settle = settle  # called, once, with why there is no connection, or None
        self._complain = complain  # called if the controller's machine refuses, or lets us wait
        self._heard = b""
        self._is_connecting = True
        self._plain = socket.socket(family_of(token.address))
        self._plain.settimeout(0.0)
        self._plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if token.own:
            self._plain.bind((token.own, 0))
        self._plain.connect_ex((token.address, token.port))  # should it fail, so does sending
        loop.watch(self._plain, selectors.EVENT_WRITE, self._greet)
        loop.after(CONNECT_S, self._look_early)
        loop.after(self._timing.answer_s, self._look)
        self._greet()  # at once, if it can be done: a connection that says nothing may have to make place

    def _look_early(self) -> None:
        if self._is_connecting:
            self._complain()

    def _look(self) -> None:
        if self._is_connecting:
            self._fail(TimeoutError(f"no connection within {self._timing.answer_s:g} s"))

    def _fail(self, error: OSError) -> None:
        self._is_connecting = False
        self._loop.unwatch(self._plain)
        self._plain.close()
        self._settle(error)

    def _greet(self, _: int = selectors.EVENT_WRITE) -> None:
        if not self._is_connecting:
            return
        invited, once = self._token, secrets.token_bytes(16)
        agent, secret = bytes.fromhex(invited.agent), bytes.fromhex(invited.secret)
        try:
            self._plain.sendall(GREETING.pack(agent, once, proof_of(secret, agent, once)))
        except BlockingIOError:
            return  # it is called again when there is a connection
        except OSError as error:
            self._complain()
            self._fail(error)
            return
        self._is_connecting = False
        self._loop.unwatch(self._plain)
        connection = TLSConnection(
            self._loop, self._plain, _context(invited.authority), invited.address, self._timing.answer_s
        )
        connection.take, connection.lost = partial(self._take, connection), self._settle
        connection.write(secret + COUNT.pack(self._channel.detach()))

    def _take(self, connection: TLSConnection, data: bytes) -> None:
        self._heard += data
        if len(self._heard) >= COUNT.size:
            (n_received,) = COUNT.unpack_from(self._heard)
            connection.set_patience(self._timing.replace_s)
            is_attached = self._channel.attach(connection, n_received, self._heard[COUNT.size :])
            self._settle(None if is_attached else _OTHER_CONTROLLER)


@lru_cache(maxsize=1)
def _context(authority: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class Dialled:
    """The agent's end of a channel to the controller, as the files that :class:`.agent.Agent` works on."""

    def __init__(self, token: JoinToken, start_up: int, *, is_tied: bool = False) -> None:
        self._loop = Loop("channel")
        self._channel = Dialler(self._loop, token, start_up, is_tied=is_tied).channel
        self.answers = self._channel  # to which the agent's messages are written
        self.commands, self._passing_on = os.pipe()
        os.set_blocking(self._passing_on, False)
        self._untaken = bytearray()
        self._has_ended = False
        self._channel.read(self._pass_on, self._end)

    def finish(self) -> None:
        """Say that nothing more comes, and wait a moment until everything has left."""
        self._channel.close()
        self._channel.wait_for_end(LAST_WORDS_S)
        self._channel.abandon()
        self._loop.close()

    def _pass_on(self, data: bytes) -> None:
        self._untaken += data
        self._pour()

    def _end(self) -> None:
        self._has_ended = True
        self._pour()

    def _pour(self, _: int = selectors.EVENT_WRITE) -> None:
        """Let the agent have its commands; what it is too busy to take waits, and nothing else waits for that."""
        try:
            while self._untaken:
                del self._untaken[: os.write(self._passing_on, self._untaken)]
        except BlockingIOError:
            self._loop.watch(self._passing_on, selectors.EVENT_WRITE, self._pour)
            return
        except BrokenPipeError:
            _log.debug("the agent reads no more commands")
            self._untaken.clear()
        self._loop.unwatch(self._passing_on)
        if self._has_ended:
            os.close(self._passing_on)
