"""What is done with each kind of message at one end: a table from the record's class to what takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from laggard.resilience.wire.codec import decode
from laggard.resilience.wire.message import Command, Report

_Kind = TypeVar("_Kind", bound=Command | Report)


class Inbox:
    """The table of one end; a message of a kind that is not in it cannot be read."""

    def __init__(self) -> None:
        self._takers: dict[type[Any], Callable[[Any], object]] = {}

    def on(self, kind: type[_Kind], take: Callable[[_Kind], object]) -> None:
        """Have something called with each message of a kind."""
        self._takers[kind] = take

    def read(self, line: bytes) -> Command | Report:
        """Return the message that a line holds; raises MessageError."""
        message: Command | Report = decode(line, *self._takers)
        return message

    def take(self, message: Command | Report) -> None:
        """Call what takes this message."""
        self._takers[type(message)](message)
