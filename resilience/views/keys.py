"""Reading single keys from a terminal, which gets its settings back whatever happens."""

from __future__ import annotations

import os
import select
import termios
import tty
from types import TracebackType
from typing import IO, Self

__all__ = ["Keyboard", "keys_of"]

# The rest of a key's sequence follows its first byte at once, over ssh too as a rule.
SEQUENCE_S = 0.05
_NAMES = {
    "[A": "up",
    "OA": "up",
    "[B": "down",
    "OB": "down",
    "[5~": "page-up",
    "[6~": "page-down",
    "[H": "home",
    "[1~": "home",
    "OH": "home",
    "[F": "end",
    "[4~": "end",
    "OF": "end",
}


class Keyboard:
    """The keys of a terminal, one at a time, for as long as the ``with`` block lasts. Ctrl-C interrupts as ever."""

    def __init__(self, terminal: IO[str]) -> None:
        self._descriptor = terminal.fileno()
        self._settings = termios.tcgetattr(self._descriptor)

    def __enter__(self) -> Self:
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._settings)

    def read(self, wait_s: float) -> list[str]:
        """Return the keys that were pressed, waiting so long for the first; ``["q"]`` where the terminal is gone."""
        if not self._waits(wait_s):
            return []
        text = os.read(self._descriptor, 1024)
        while text.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and self._waits(SEQUENCE_S):
            text += os.read(self._descriptor, 1024)
        return keys_of(text.decode(errors="replace")) if text else ["q"]

    def _waits(self, wait_s: float) -> bool:
        return bool(select.select([self._descriptor], [], [], wait_s)[0])


def keys_of(text: str) -> list[str]:
    """Return the names of the keys that a terminal has sent; sequences that are not known are passed over."""
    keys: list[str] = []
    while text:
        if text[0] != "\x1b":
            keys.append("enter" if text[0] in "\r\n" else text[0])
            text = text[1:]
        elif len(text) == 1 or text[1] not in "[O":
            keys.append("escape")
            text = text[1:]
        else:
            end = 2
            while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
                end += 1
            if name := _NAMES.get(text[1 : end + 1]):
                keys.append(name)
            text = text[end + 1 :]
    return keys
