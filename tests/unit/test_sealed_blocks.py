"""Blocks on their way to another node: nobody reads them, and none is changed, left out or put elsewhere unnoticed."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress

import pytest

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, blocks_of, sums_of
from laggard.kvstore.checkpoints.sealed import new_secret, receive_blocks, send_blocks
from laggard.kvstore.checkpoints.wire import receive_exactly

SIZE = 2 * BLOCK_BYTES + 100
SEALED_BYTES = BLOCK_BYTES + 16
CONTENT = random.Random(1).randbytes(SIZE)
SUMS = sums_of(memoryview(CONTENT))


def sealed(secret: str, content: bytes | bytearray = CONTENT) -> bytearray:
    """Return what goes over the network."""
    here, there = socket.socketpair()
    with here, there:
        thread = threading.Thread(target=send_blocks, args=(here, secret, memoryview(content)))
        thread.start()
        found = receive_exactly(there, SIZE + 3 * 16)
        thread.join()
    return bytearray(found)


def opened(on_the_way: bytearray, secret: str, target: bytearray) -> None:
    """Receive what has come over the network."""
    here, there = socket.socketpair()

    def send() -> None:
        with here, suppress(OSError):  # the other end gives up
            here.sendall(on_the_way)

    with there:
        threading.Thread(target=send, daemon=True).start()
        receive_blocks(there, secret, SUMS, 0, blocks_of(memoryview(target)))


def test_what_arrives_is_what_was_sent_and_what_travels_is_not() -> None:
    secret, arrived = new_secret(), bytearray(SIZE)
    on_the_way = sealed(secret)
    opened(on_the_way, secret, arrived)
    assert arrived == CONTENT
    assert not any(CONTENT[at : at + 16] in on_the_way for at in range(0, SIZE, BLOCK_BYTES))
    assert sealed(new_secret()) != on_the_way


@pytest.mark.parametrize("at", [0, BLOCK_BYTES + 3, 2 * SEALED_BYTES + 99, SIZE + 3 * 16 - 1])
def test_a_changed_byte_ends_the_transfer_at_its_block(at: int) -> None:
    secret, arrived = new_secret(), bytearray(SIZE)
    on_the_way = sealed(secret)
    on_the_way[at] ^= 1
    intact = at // SEALED_BYTES * BLOCK_BYTES
    with pytest.raises(ConnectionError, match=f"the block at byte {intact} was changed"):
        opened(on_the_way, secret, arrived)
    assert arrived[:intact] == CONTENT[:intact]
    assert not any(arrived[intact + BLOCK_BYTES :])


def test_blocks_in_another_order_or_of_another_transfer_and_a_short_transfer_are_refused() -> None:
    secret, arrived = new_secret(), bytearray(SIZE)
    on_the_way = sealed(secret)
    first, second, rest = on_the_way[:SEALED_BYTES], on_the_way[SEALED_BYTES:][:SEALED_BYTES], on_the_way[-116:]
    for other in (second + first + rest, sealed(new_secret())):
        with pytest.raises(ConnectionError, match="the block at byte 0 "):
            opened(other, secret, arrived)
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        opened(first + second + rest[:-1], secret, arrived)


def test_what_the_sender_has_damaged_is_refused() -> None:
    secret, damaged = new_secret(), bytearray(CONTENT)
    damaged[BLOCK_BYTES] ^= 1
    with pytest.raises(ConnectionError, match=f"the block at byte {BLOCK_BYTES} does not match its checksum"):
        opened(sealed(secret, damaged), secret, bytearray(SIZE))
