"""Blocks of a shard on their way to another node, each encrypted and authenticated with AES-GCM, beside TLS.

TLS carries the key, a new one for each transfer, and all that is said about it.  The blocks go through the same
connection outside of TLS, whose records of 16 KiB take twice the processor time (docs/decisions/0003-checkpoints.md).
Whoever receives them says last that they may come, so that its TLS reads none of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
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
    cipher, memory = AESGCM(bytes.fromhex(secret)), _memory()
    with _beside_tls(connection) as plain:
        for number, block in enumerate(blocks_of(content)):
            sealed = memory[: block.nbytes + _TAG_BYTES]
            cipher.encrypt_into(_nonce(number), block, None, sealed)
            plain.sendall(sealed)


def receive_blocks(
    connection: socket.socket, secret: str, sums: bytes, start: int, blocks: Iterable[memoryview]
) -> None:
    """Fill the blocks of a range of a shard, and verify each, given where it begins and the checksums of the shard."""
    cipher, memory = AESGCM(bytes.fromhex(secret)), _memory()
    with _beside_tls(connection) as plain:
        for number, block in enumerate(blocks):
            at, sealed = start + number * BLOCK_BYTES, memory[: block.nbytes + _TAG_BYTES]
            receive_into(plain, sealed)
            try:
                cipher.decrypt_into(_nonce(number), sealed, None, block)
            except InvalidTag:
                raise ConnectionError(f"the block at byte {at} was changed on its way") from None
            if wrong_block(sums, at, block) is not None:
                raise ConnectionError(f"the block at byte {at} does not match its checksum")


def _memory() -> memoryview:
    """Return memory for a sealed block. New memory for each block costs several times what it takes to seal it."""
    return memoryview(bytearray(BLOCK_BYTES + _TAG_BYTES))


def _nonce(number: int) -> bytes:
    """Return what differs between the blocks of a key, and fails where one stands in another's place."""
    return number.to_bytes(_NONCE_BYTES, "little")


@contextmanager
def _beside_tls(connection: socket.socket) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(connection.fileno())) as plain:
        plain.settimeout(connection.gettimeout())
        yield plain
