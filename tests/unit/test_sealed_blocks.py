"""Blocks on their way to another node: nobody reads them, and none is changed, left out or put elsewhere unnoticed."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, sums_of
from laggard.kvstore.checkpoints.sealed import new_secret, receive_blocks, send_blocks
from laggard.kvstore.checkpoints.wire import receive_exactly

SIZE = 2 * BLOCK_BYTES + 100
SEALED_BYTES = BLOCK_BYTES + 16
CONTENT = random.Random(1).randbytes(SIZE)
SUMS = sums_of(memoryview(CONTENT))


def sealed(secret: str) -> bytearray:
    """Return what goes over the network."""
    here, there = socket.socketpair()
    with here, there:
        thread = threading.Thread(target=send_blocks, args=(here, secret, memoryview(CONTENT)))
        thread.start()
        found = receive_exactly(there, SIZE + 3 * 16)
        thread.join()
    return bytearray(found)


def opened(on_the_way: bytearray, secret: str) -> Iterator[tuple[int, memoryview]]:
    here, there = socket.socketpair()

    def send() -> None:
        with here, suppress(OSError):  # the other end gives up
            here.sendall(on_the_way)

    with there:
        threading.Thread(target=send, daemon=True).start()
        yield from receive_blocks(there, secret, SUMS, 0, SIZE)


def test_what_arrives_is_what_was_sent_and_what_travels_is_not() -> None:
    secret = new_secret()
    on_the_way = sealed(secret)
    arrived = list(opened(on_the_way, secret))
    assert [at for at, _ in arrived] == [0, BLOCK_BYTES, 2 * BLOCK_BYTES]
    assert b"".join(block for _, block in arrived) == CONTENT
    assert not any(CONTENT[at : at + 16] in on_the_way for at in range(0, SIZE, BLOCK_BYTES))
    assert sealed(new_secret()) != on_the_way


@pytest.mark.parametrize("at", [0, BLOCK_BYTES + 3, 2 * SEALED_BYTES + 99, SIZE + 3 * 16 - 1])
def test_a_changed_byte_ends_the_transfer_before_its_block_is_used(at: int) -> None:
    secret = new_secret()
    on_the_way = sealed(secret)
    on_the_way[at] ^= 1
    blocks = opened(on_the_way, secret)
    intact = at // SEALED_BYTES
    assert [next(blocks)[0] for _ in range(intact)] == [BLOCK_BYTES * n for n in range(intact)]
    with pytest.raises(ConnectionError, match=f"the block at byte {BLOCK_BYTES * intact} was changed"):
        next(blocks)


def test_blocks_in_another_order_or_of_another_transfer_and_a_short_transfer_are_refused() -> None:
    secret = new_secret()
    on_the_way = sealed(secret)
    first, second, rest = on_the_way[:SEALED_BYTES], on_the_way[SEALED_BYTES:][:SEALED_BYTES], on_the_way[-116:]
    for other in (second + first + rest, sealed(new_secret())):
        with pytest.raises(ConnectionError, match="the block at byte 0 "):
            next(opened(other, secret))
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        list(opened(first + second + rest[:-1], secret))
