"""Both ends of a connection prove that they know the job's secret, before anything else is said.

Each end draws a nonce, and shows the other an HMAC of both nonces under a key made from the secret; the ends' words
differ, so an answer cannot be sent back as a proof. Until the caller has proved it, the listener sends a nonce alone.
The payload of a probe is meaningless bytes, so nothing is encrypted: that would cost more than the transfer.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time

from laggard.errors import LaggardError

NONCE_BYTES = 32
PROOF_BYTES = 32


class UnauthenticatedError(LaggardError, ConnectionError):
    """The other end does not know the job's secret."""

    reason: str
    template = "{reason}"


def key_of(secret: str, job: str, launch: int) -> bytes:
    """Return the key of one launch: what is overheard in it is worth nothing in another."""
    return hmac.digest(secret.encode(), f"laggard links {job} {launch}".encode(), "sha256")


def answer(connection: socket.socket, key: bytes, deadline_s: float) -> None:
    """Let a caller prove that it belongs to the job, then prove the same."""
    until_s = time.monotonic() + deadline_s
    own = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(own)
    nonce = receive_exactly(connection, NONCE_BYTES, until_s)
    proof = receive_exactly(connection, PROOF_BYTES, until_s)
    if not hmac.compare_digest(proof, _proof(key, b"caller", own, nonce)):
        raise UnauthenticatedError("the caller does not know the job's secret")
    connection.sendall(_proof(key, b"listener", own, nonce))


def call(connection: socket.socket, key: bytes, deadline_s: float) -> None:
    """Prove to a listener that we belong to the job, and have it prove the same; see :func:`answer`."""
    until_s = time.monotonic() + deadline_s
    nonce = receive_exactly(connection, NONCE_BYTES, until_s)
    own = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(own + _proof(key, b"caller", nonce, own))
    proof = receive_exactly(connection, PROOF_BYTES, until_s)
    if not hmac.compare_digest(proof, _proof(key, b"listener", nonce, own)):
        raise UnauthenticatedError("the listener does not know the job's secret")


def _proof(key: bytes, who: bytes, of_listener: bytes, of_caller: bytes) -> bytes:
    return hmac.digest(key, who + of_listener + of_caller, "sha256")


def receive_exactly(connection: socket.socket, n_bytes: int, until_s: float) -> bytes:
    """Return that many bytes, received before ``until_s`` on the monotonic clock."""
    data = bytearray(n_bytes)
    view, at = memoryview(data), 0
    while at < n_bytes:
        at += receive_into(connection, view[at:], until_s)
    return bytes(data)


def receive_into(connection: socket.socket, buffer: memoryview, until_s: float) -> int:
    """Receive some bytes before ``until_s``, and return how many, as :func:`receive_exactly` does."""
    connection.settimeout(max(1e-3, until_s - time.monotonic()))
    received = connection.recv_into(buffer)
    if not received:
        raise ConnectionError("the other end has closed the connection")
    return received
