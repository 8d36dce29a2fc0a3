"""The program by which the kernel tells known addresses from others, run here on made-up senders."""

from __future__ import annotations

import socket
from collections.abc import Collection

import pytest

from laggard.kvstore.strangers import program_for

FIRST, SECOND = 0, 1
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
# Beyond this offset, the kernel counts from the header of the network layer, whose 12th byte the sender begins at.
SENDER = -0x100000 + 12 & 0xFFFFFFFF
MANY = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(3000)]


def run(known: Collection[str], sender: str) -> int:
    """Return to which socket the program sends a sender, as the kernel would run it."""
    program, at, word = program_for(known), 0, 0
    assert len(program) <= 4096, "the kernel does not take it"
    while True:
        code, if_true, if_false, constant = program[at]
        match code:
            case 0x20:
                assert constant == SENDER
                word = int.from_bytes(socket.inet_aton(sender), "big")
                at += 1
            case 0x15:
                at += 1 + (if_true if word == constant else if_false)
            case 0x06:
                return constant
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize(
    ("known", "sender", "queue"),
    [
        ([], "10.0.0.1", SECOND),
        (["10.0.0.1"], "10.0.0.1", FIRST),
        (["10.0.0.1"], "10.0.0.2", SECOND),
        (["10.0.0.1"], "1.0.0.10", SECOND),
        (["10.0.0.1", "10.0.0.2", "255.255.255.255"], "10.0.0.2", FIRST),
        (["10.0.0.1", "10.0.0.2", "255.255.255.255"], "255.255.255.255", FIRST),
        (["10.0.0.1", "10.0.0.2", "255.255.255.255"], "0.0.0.0", SECOND),  # noqa: S104 - it is the sender's
        (MANY[:2047], MANY[2046], FIRST),
        (MANY[:2047], MANY[2047], SECOND),
        (MANY[:2048], MANY[2047], FIRST),
        (MANY[:2048], MANY[2048], FIRST),  # more than the kernel takes: all use the first queue
    ],
)
def test_known_addresses_go_to_the_first_queue_and_others_to_the_second(
    known: list[str], sender: str, queue: int
) -> None:
    assert run(known, sender) == queue
