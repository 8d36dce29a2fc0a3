"""Reads a server's append-only file up to its last good commit, without a server.

The file is a sequence of commands as clients send them; ``MULTI`` to ``EXEC`` is one step, and every transaction of
State that writes more than one key is such a step.  A step counts if it is complete and all of its commands are ones
that the server knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

_LONGEST_LINE = 64 << 10  # of the server's notes; valkey.io/topics/protocol
_LONGEST_WORD = 512 << 20  # the server's own limit, `proto-max-bulk-len`
_ACKNOWLEDGEMENT = b":state:ack:"


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in a file."""

    good_bytes: int  # length of the file up to the end of its last good step
    forgotten_ms: int | None  # when the acknowledgement of the last good commit is forgotten, in Unix milliseconds
    damage: str | None  # what is wrong after the last good step; None if nothing is


def scan(file: BinaryIO, arities: Mapping[str, int]) -> Scan:
    """Find the last good step of a file."""
    good_bytes, forgotten_ms, pending_ms, in_transaction = 0, None, None, False
    damage = None
    try:
        for words in _commands(file):
            name = _checked_name(words, arities, in_transaction)
            if name in {"multi", "exec"}:
                in_transaction = not in_transaction
            elif name == "set" and _ACKNOWLEDGEMENT in words[1] and len(words) == 5 and words[4].isdigit():
                pending_ms = int(words[4])
            if not in_transaction:
                good_bytes, forgotten_ms = file.tell(), pending_ms
        if in_transaction:
            damage = "its last transaction is not complete"
    except ValueError as error:
        damage = str(error)
    except OSError as error:
        damage = f"it cannot be read ({error.strerror})"
    return Scan(good_bytes, forgotten_ms, damage)


def _commands(file: BinaryIO) -> Iterator[list[bytes]]:
    while line := file.readline(_LONGEST_LINE):
        if not line.startswith(b"#"):  # a note of the server's
            yield [_word(file) for _ in range(_number(line, b"*"))]
        elif not line.endswith(b"\n"):
            raise ValueError("it is cut off")


def _word(file: BinaryIO) -> bytes:
    length = _number(file.readline(_LONGEST_LINE), b"$")
    word = file.read(length + 2)
    if len(word) < length + 2:
        raise ValueError("it ends within a command")
    if not word.endswith(b"\r\n"):
        raise ValueError("a word is longer or shorter than it says")
    return word[:-2]


def _number(line: bytes, kind: bytes) -> int:
    """Return the number in a line that says how many words, or bytes of one, follow."""
    if match := re.fullmatch(rb"[*$](\d{1,9})\r\n", line):
        number = int(match[1])
        if line.startswith(kind) and (number if kind == b"*" else number <= _LONGEST_WORD):
            return number
    raise ValueError(f"{line[:20]!r} instead of a command" if line.strip(b"\0\r\n") else "zeros instead of a command")


def _checked_name(words: list[bytes], arities: Mapping[str, int], in_transaction: bool) -> str:
    name = words[0][:20].decode(errors="replace").lower()
    arity = arities.get(name)
    if arity is None:
        raise ValueError(f"{words[0][:20]!r} is not a command of the server's")
    if len(words) != arity if arity >= 0 else len(words) < -arity:
        raise ValueError(f"{name.upper()} with {len(words)} words")
    if name in {"multi", "exec"} and in_transaction == (name == "multi"):
        raise ValueError(f"{name.upper()} in the wrong place")
    return name
