"""Blocks of a shard on their way to another node, each encrypted and authenticated with AES-GCM, beside TLS.

TLS carries the key, a new one for each transfer, and all that is said about it.  The blocks go through the same
connection outside of TLS, whose records of 16 KiB take twice the processor time (docs/decisions/0003-checkpoints.md).
Whoever receives them says last that they may come, so that its TLS reads none of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, blocks_of, wrong_block
from laggard.kvstore.checkpoints.wire import receive_into

_TAG_BYTES = 16
_NONCE_BYTES = 12


def new_secret() -> str:
    """Return a key for one transfer."""
    return AESGCM.generate_key(256).hex()


def send_blocks(connection: socket.socket, secret: str, content: memoryview) -> None:
    """Send a range of a shard, once the other end has said that it may come."""
    cipher = AESGCM(bytes.fromhex(secret))
    with _beside_tls(connection) as plain:
        for number, block in enumerate(blocks_of(content)):
            plain.sendall(cipher.encrypt(_nonce(number), block, None))


def receive_blocks(
    connection: socket.socket, secret: str, sums: bytes, start: int, stop: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield offset and content of each block of a range of a shard, verified, given the checksums of the shard."""
    cipher = AESGCM(bytes.fromhex(secret))
    memory = memoryview(bytearray(BLOCK_BYTES + _TAG_BYTES))
    with _beside_tls(connection) as plain:
        for number, at in enumerate(range(start, stop, BLOCK_BYTES)):
            sealed = memory[: min(BLOCK_BYTES, stop - at) + _TAG_BYTES]
            receive_into(plain, sealed)
            try:
                block = memoryview(cipher.decrypt(_nonce(number), sealed, None))
            except InvalidTag:
                raise ConnectionError(f"the block at byte {at} was changed on its way") from None
            if wrong_block(sums, at, block) is not None:
                raise ConnectionError(f"the block at byte {at} does not match its checksum")
            yield at, block


def _nonce(number: int) -> bytes:
    """Return what differs between the blocks of a key, and fails where one stands in another's place."""
    return number.to_bytes(_NONCE_BYTES, "little")


@contextmanager
def _beside_tls(connection: socket.socket) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(connection.fileno())) as plain:
        plain.settimeout(connection.gettimeout())
        yield plain
