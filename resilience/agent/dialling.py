"""How an agent on another machine reaches the controller: it dials, over TLS, and proves that it was invited.

The controller sends the invitation to the standard input of the process that ``srun`` or ``ssh`` starts. That pipe
carries nothing else; its end says that the controller is gone, should the connection be gone, too.

Before TLS begins the agent proves that it knows its secret, in one message of a fixed length that costs nothing to
check: whoever does not know it keeps nobody busy. Within TLS it shows the secret itself, to the controller only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import random
import secrets
import select
import socket
import ssl
import struct
import threading
from dataclasses import asdict, dataclass, field, replace

from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.tls_connection import TLSConnection

__all__ = ["COUNT", "GREETING", "SECRET_BYTES", "Dialled", "Invitation", "proof_of", "read_invitation"]

_log = logging.getLogger("laggard.resilience.agent")

SECRET_BYTES = 32
GREETING = struct.Struct(">16s16s32s")
"""The agent's id, a number that it uses once, and the proof that it knows its secret."""

COUNT = struct.Struct(">Q")
"""How many messages this end has received."""

# Heartbeats are answered twice a second: a connection through which nothing comes for so long is replaced. Not sooner:
# the agents of a thousand nodes would only add to what keeps the controller busy.
SILENT_S = 5.0
# When a thousand agents dial at once, the last one waits for its turn.
ANSWER_S = 30.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 2.0
LAST_WORDS_S = 1.0
_LONGEST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Invitation:
    """What an agent needs to dial.

    Attributes
    ----------
    address, port
        Where the controller listens.
    authority
        Certificate, as PEM text, that the controller's certificate is verified against.
    agent
        The agent's id, as hexadecimal digits; empty: of all agents that were started together, and each derives its own
        (`of_node`).
    secret
        The same; never shown by ``repr``.
    """

    address: str
    port: int
    authority: str = field(repr=False)
    agent: str
    secret: str = field(repr=False)

    def of_node(self, name: str) -> Invitation:
        """Return a node's own invitation, derived from one for all. Pure."""
        secret = bytes.fromhex(self.secret)
        agent, own = (hmac.digest(secret, use + name.encode(), hashlib.sha256) for use in (b"agent ", b"secret "))
        return replace(self, agent=agent[:16].hex(), secret=own.hex())

    def to_line(self) -> bytes:
        """Return what `read_invitation` reads."""
        return json.dumps(asdict(self)).encode() + b"\n"


def proof_of(secret: bytes, agent: bytes, once: bytes) -> bytes:
    """Return the proof that goes with an agent's id and a number that it uses once. Pure."""
    return hmac.digest(secret, b"laggard agent" + agent + once, hashlib.sha256)


def read_invitation(descriptor: int) -> Invitation:
    """Read the invitation, the only line that ever comes through that pipe.

    Raises
    ------
    EOFError
        If the pipe ends before: the controller is gone.
    """
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(descriptor, _LONGEST_BYTES)
        if not piece:
            raise EOFError("the controller was gone before it had sent an invitation")
        text += piece
    return Invitation(**json.loads(text))


class _Text:
    """A channel to which text is written, a line at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, text: str) -> int:
        return self._channel.write(text.encode())

    def flush(self) -> None:
        pass


class Dialled:
    """The agent's end of a channel to the controller, with the files that :class:`.agent.Agent` works on.

    Parameters
    ----------
    invitation
        From the controller.
    start_up
        The pipe that it came through.

    Attributes
    ----------
    answers
        To which the agent's messages are written.
    commands
        Descriptor from which the controller's commands can be read.
    """

    def __init__(self, invitation: Invitation, start_up: int) -> None:
        self._invitation = invitation
        self._start_up = start_up
        self._wait_s = FIRST_WAIT_S
        self._context = ssl.create_default_context(cadata=invitation.authority)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._channel = Channel(self._dial, gives_up=True)
        self.answers = _Text(self._channel)
        self.commands, self._received = os.pipe()
        self._reader = threading.Thread(target=self._pass_on, name="channel", daemon=True)
        self._reader.start()

    def finish(self) -> None:
        """Say that nothing more comes, and wait a moment until the controller has received everything."""
        self._channel.close()
        self._reader.join(LAST_WORDS_S)
        self._channel.abandon()

    def _pass_on(self) -> None:
        try:
            while data := self._channel.receive():
                os.write(self._received, data)
        except BrokenPipeError:
            _log.debug("the agent reads no more commands")
        finally:
            os.close(self._received)

    def _dial(self, channel: Channel) -> bool:
        """Dial once, and wait a little if that fails; return False if the controller is gone."""
        if self._is_alone(0.0):
            return False
        try:
            self._connect(channel)
        except OSError as error:
            _log.debug("the controller cannot be reached: %s", error)
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
            return not self._is_alone(self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = FIRST_WAIT_S
        return True

    def _connect(self, channel: Channel) -> None:
        invited = self._invitation
        agent, secret, once = bytes.fromhex(invited.agent), bytes.fromhex(invited.secret), secrets.token_bytes(16)
        plain = socket.create_connection((invited.address, invited.port), ANSWER_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.sendall(GREETING.pack(agent, once, proof_of(secret, agent, once)))
        except OSError:
            plain.close()
            raise
        connection = TLSConnection(plain, self._context, invited.address)
        try:
            connection.write(secret + COUNT.pack(channel.detach()))
            (n_received,) = COUNT.unpack(connection.read(COUNT.size))
            connection.set_timeout(SILENT_S)
        except OSError:
            connection.close()
            raise
        channel.attach(connection, n_received)

    def _is_alone(self, wait_s: float) -> bool:
        """Return whether the start-up pipe has ended, or does so before long: then nobody is left to dial to."""
        readable, _, _ = select.select([self._start_up], [], [], wait_s)
        return bool(readable) and not os.read(self._start_up, _LONGEST_BYTES)
