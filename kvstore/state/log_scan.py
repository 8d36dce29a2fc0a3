"""Reads a server's append-only file up to its last good commit, without a server.

The file is a sequence of commands as clients send them; ``MULTI`` to ``EXEC`` is one step, and every transaction of
State that writes more than one key is such a step.  A step counts if it is complete and all of its commands are ones
that the server knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

# Of an argument, only the beginning is looked at; the rest may be gigabytes.
_LOOKED_AT_BYTES = 256
_BLOCK_BYTES = 1 << 20
_LONGEST_LINE = 64 << 10
_ACKNOWLEDGEMENT = re.compile(rb":state:ack:")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit to State: its number, and when its acknowledgement is forgotten, in Unix milliseconds."""

    number: int
    forgotten_ms: int | None


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in a file."""

    good_bytes: int  # length of the file up to the end of its last good step
    size_bytes: int  # length of the file
    last_commit: Commit | None  # the last one among the good steps
    damage: str | None  # what is wrong after them; None if nothing is


class _Damage(Exception):  # noqa: N818 - a signal between functions of this module
    """The bytes at hand are not a command."""


def scan(file: BinaryIO, size_bytes: int, arities: Mapping[str, int]) -> Scan:
    """Find the last good step of a file."""
    reader, steps, damage = _Reader(file, size_bytes), _Steps(arities), None
    try:
        while (words := reader.command()) is not None:
            steps.take(words, reader.at)
        if steps.in_transaction:
            damage = "its last transaction is not complete"
    except _Damage as error:
        damage = str(error)
    except OSError as error:
        damage = f"it cannot be read ({error.strerror})"
    return Scan(steps.good_bytes, size_bytes, steps.last_commit, damage)


class _Steps:
    """The good steps so far."""

    def __init__(self, arities: Mapping[str, int]) -> None:
        self.good_bytes = 0
        self.last_commit: Commit | None = None
        self.in_transaction = False
        self._arities = arities
        self._pending: Commit | None = None  # of the step at hand

    def take(self, words: list[bytes], end: int) -> None:
        """Take the next command, which ends at a byte."""
        name = self._checked_name(words)
        if name in {"multi", "exec"}:
            if self.in_transaction == (name == "multi"):
                raise _Damage(f"{name.upper()} in the wrong place")
            self.in_transaction = not self.in_transaction
        else:
            self._pending = _commit_in(words) or self._pending
        if not self.in_transaction:
            self.good_bytes, self.last_commit = end, self._pending or self.last_commit
            self._pending = None

    def _checked_name(self, words: list[bytes]) -> str:
        name = words[0].decode(errors="replace").lower()
        arity = self._arities.get(name)
        if arity is None:
            raise _Damage(f"{words[0][:20]!r} is not a command of the server's")
        if len(words) != arity if arity >= 0 else len(words) < -arity:
            raise _Damage(f"{name.upper()} with {len(words)} words")
        return name


class _Reader:
    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self.at = 0
        self._file = file
        self._size_bytes = size_bytes

    def command(self) -> list[bytes] | None:
        """Return the beginnings of the next command's words; None at the end of the file."""
        while self.at < self._size_bytes:
            line = self._line()
            if not line.startswith(b"#"):  # a note of the server's
                return [self._word() for _ in range(self._number(line, b"*", least=1))]
        return None

    def _word(self) -> bytes:
        length = self._number(self._line(), b"$", least=0)
        if self.at + length + 2 > self._size_bytes:
            raise _Damage("it ends within a command")
        beginning = self._read(min(length, _LOOKED_AT_BYTES))
        left = length - len(beginning)
        while left:
            left -= len(self._read(min(left, _BLOCK_BYTES)))
        if self._read(2) != b"\r\n":
            raise _Damage("a word is longer or shorter than it says")
        return beginning

    def _number(self, line: bytes, kind: bytes, least: int) -> int:
        digits = line[1:]
        if line[:1] != kind or not digits.isdigit() or len(digits) > 18 or int(digits) < least:
            raise _Damage(_instead(line))
        return int(digits)

    def _line(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        self.at += len(line)
        if not line.endswith(b"\r\n"):
            raise _Damage(f"{line[:20]!r} where a length must be" if self.at < self._size_bytes else "it is cut off")
        return line[:-2]

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        self.at += len(data)
        if len(data) < count:
            raise _Damage("it is cut off")
        return data


def _instead(line: bytes) -> str:
    return f"{line[:20]!r} instead of a command" if line.strip(b"\0") else "zeros instead of a command"


def _commit_in(words: list[bytes]) -> Commit | None:
    """Return the commit that a command acknowledges."""
    if len(words) < 3 or words[0].lower() != b"set" or not _ACKNOWLEDGEMENT.search(words[1]) or not words[2].isdigit():
        return None
    expiry = words[4] if len(words) == 5 and words[3].upper() == b"PXAT" and words[4].isdigit() else None
    return Commit(int(words[2]), None if expiry is None else int(expiry))
