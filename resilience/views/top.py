"""``laggard top``: the live view.

What a key does is a pure function (:func:`after_key`); only :func:`run_top` and :class:`Keyboard` touch the terminal.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import IO, Self

import redis
from rich.console import Console
from rich.live import Live

from laggard.kvstore.errors import KVStoreError
from laggard.resilience.text import duration
from laggard.resilience.views.screen import Body, Page, View, body_of, settled, whole_screen
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.tables import SORTS
from laggard.telemetry.errors import NodeError

KEY_WAIT_S = 0.1  # so soon the end of the job and a new size of the terminal are noticed
# The rest of a key's escape sequence follows its first byte at once, usually over ssh too.
SEQUENCE_S = 0.05
_PAGES: dict[str, Page] = {"d": "devices", "o": "overview", "n": "nodes", "h": "history", "m": "metrics"}
_KEY = re.compile(r"\x1b[\[O][\d;]*[A-Za-z~]|.", re.DOTALL)
_NAMED = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "escape",
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
}


def run_top(take: Callable[[], Snapshot], has_ended: Callable[[], bool], interval_s: float, console: Console) -> str:
    """Show a job until the user quits or the job ends; return the reason for ending, empty if the user quit."""
    view, snapshot, trouble = View(), take(), ""
    taken_s = due_s = time.monotonic()
    taking: Future[Snapshot] | None = None
    drawn: object = None
    with (
        ThreadPoolExecutor(1, thread_name_prefix="snapshot") as executor,
        Keyboard(sys.stdin) as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            width, height = console.size
            if drawn != (snapshot.taken_s, view, width, height, trouble):  # sorting and drawing are costly
                body = body_of(snapshot, view, width, height, trouble)
                view = settled(view, body)
                live.update(whole_screen(snapshot, view, body, width, trouble), refresh=True)
                drawn = snapshot.taken_s, view, width, height, trouble
            for key in keyboard.read(KEY_WAIT_S):
                following = after_key(key, view, body)
                if following is None:
                    return ""
                body = body_of(snapshot, following, width, height, trouble)
                view = settled(following, body)
            if taking is not None and taking.done():
                try:
                    snapshot, trouble, taken_s = taking.result(), "", time.monotonic()
                except (redis.RedisError, KVStoreError, NodeError):
                    if has_ended():
                        return "the job has ended"
                    silent_s = time.monotonic() - taken_s
                    trouble = f"no answer from the job for {duration(silent_s)}: showing its last known status"
                taking = None
            if taking is None and time.monotonic() >= due_s:
                due_s = time.monotonic() + interval_s
                taking = executor.submit(take)


def after_key(key: str, view: View, body: Body) -> View | None:
    """Return the view after a key was pressed; None to quit."""
    if view.find is not None:
        return _searched(key, view, view.find, body)
    if key == "q":
        return None
    if view.help or key == "?":
        return replace(view, help=not view.help)
    if key in _PAGES:
        return replace(view, page=_PAGES[key], selected=0, details=False)
    shows_devices = view.page in {"devices", "overview"}
    match key:
        case "/":
            return replace(view, find="")
        case "s" if view.page == "devices":
            sorts = list(SORTS)
            following = sorts[(sorts.index(view.sort) + 1) % len(sorts)]
            return replace(view, sort=following, selected=0, name="")
        case "c" if view.page == "overview":
            return replace(view, colour=view.colour + 1)
        case "enter" if shows_devices and body.rows:
            return replace(view, details=True)
        case "escape":
            return replace(view, details=False)
    return _at(_moved(key, view.selected, body), view, body)


def _moved(key: str, at: int, body: Body) -> int:
    lines = {"up": -1, "down": 1, "page-up": -body.room, "page-down": body.room}
    if key in lines and body.rows:
        return body.grid.neighbour(at, lines[key])
    return {"left": at - 1, "right": at + 1, "home": 0, "end": len(body.rows) - 1}.get(key, at)


def _searched(key: str, view: View, find: str, body: Body) -> View:
    """Return the view after a key within a search; it follows the text to the next row that contains it."""
    step = 0
    match key:
        case "enter" | "escape":
            return replace(view, find=None)
        case "backspace":
            find = find[:-1]
        case "up" | "down":
            step = -1 if key == "up" else 1
        case _ if len(key) == 1 and key.isprintable():
            find += key
    return _at(found(body.rows, find, view.selected, step), replace(view, find=find), body)


def _at(selected: int, view: View, body: Body) -> View:
    return settled(replace(view, selected=selected, name=""), body)


def found(rows: Sequence[str], text: str, at: int, step: int) -> int:
    """Return the next row (``step`` 1), or the one before (-1), that contains a text; ``at`` if there is none."""
    # With a step of 0 the row `at` itself comes first.
    there = [number for number, row in enumerate(rows) if text.lower() in row.lower()]
    if step < 0:
        return next((number for number in reversed(there) if number < at), at)
    after = (number for number in there if number >= at + step)
    return next(after, there[0] if there and step == 0 else at)


class Keyboard:
    """Reads single keys from a terminal for the length of a ``with`` block. Ctrl-C still interrupts."""

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
        """Return the keys pressed, after waiting for the first; ``["q"]`` if the terminal is gone."""
        if not self._has_input(wait_s):
            return []
        text = os.read(self._descriptor, 1024)
        while text.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and self._has_input(SEQUENCE_S):
            text += os.read(self._descriptor, 1024)
        return keys_of(text.decode(errors="replace")) if text else ["q"]

    def _has_input(self, wait_s: float) -> bool:
        return bool(select.select([self._descriptor], [], [], wait_s)[0])


def keys_of(text: str) -> list[str]:
    """Return the names of the keys that a terminal has sent; what has no name does nothing."""
    sent = _KEY.findall(text)
    return [_NAMED.get(each.replace("\x1bO", "\x1b["), each) for each in sent]
