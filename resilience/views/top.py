"""``laggard top``: the live view.

What a key does is a pure function (:func:`after_key`); only :func:`run_top` and :class:`Keyboard` touch the terminal.
"""

from __future__ import annotations

import os
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
from laggard.resilience.views.screen import Page, View, room_for, rows_of, whole_screen
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.tables import SORTS
from laggard.telemetry.bus import NodeError

__all__ = ["Keyboard", "after_key", "clamped", "keys_of", "run_top"]

KEY_WAIT_S = 0.1
# The rest of a key's escape sequence follows its first byte at once, usually over ssh too.
SEQUENCE_S = 0.05
_PAGES: dict[str, Page] = {"d": "devices", "n": "nodes", "h": "history", "m": "metrics"}
_SEQUENCES = {
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


def run_top(take: Callable[[], Snapshot], has_ended: Callable[[], bool], interval_s: float, console: Console) -> str:
    """Show a job until the user quits or the job ends; return the reason for ending, empty if the user quit.

    Parameters
    ----------
    take
        Takes a snapshot.
    has_ended
        Whether the job has ended.
    interval_s
        Seconds between snapshots.
    console
        The terminal.
    """
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
                rows = rows_of(snapshot, view, width)
                room = room_for(snapshot, view.page, width, height, trouble)
                view = clamped(view, rows, room)
                live.update(whole_screen(snapshot, view, width, height, trouble), refresh=True)
                drawn = snapshot.taken_s, view, width, height, trouble
            for key in keyboard.read(KEY_WAIT_S):
                before, following = view, after_key(key, view, rows, room)
                if following is None:
                    return ""
                view = following
                if (view.page, view.sort, view.backwards) != (before.page, before.sort, before.backwards):
                    rows = rows_of(snapshot, view, width)
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


def after_key(key: str, view: View, rows: Sequence[str], room: int) -> View | None:
    """Return the view after a key was pressed; None to quit.

    Parameters
    ----------
    key
        Name of the key, as :func:`keys_of` returns it.
    view
        The view before.
    rows
        Names of the page's rows, in order.
    room
        Number of rows that fit on the screen.
    """
    if key == "q":
        return None
    if key in _PAGES:
        return _page(view, _PAGES[key])
    match key:
        case "s" if view.page == "devices":
            following = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
            return replace(view, sort=following, selected=0, top=0)
        case "r" if view.page == "devices":
            return replace(view, backwards=not view.backwards, selected=0, top=0)
        case "enter" if view.page == "devices" and rows:
            return replace(view, page="device", device=rows[view.selected])
        case "escape" if view.page == "device":
            return replace(view, page="devices")
    return clamped(_moved(key, view, rows, room), rows, room)


def clamped(view: View, rows: Sequence[str], room: int) -> View:
    """Return the view with its selection within the rows, and visible."""
    if view.page == "device":
        view = replace(view, selected=rows.index(view.device))
    selected = max(0, min(view.selected, len(rows) - 1))
    if view.page in {"devices", "device"}:
        top = max(selected - room + 1, min(view.top, selected))
        return replace(view, selected=selected, top=max(0, min(top, len(rows) - 1)))
    return replace(view, top=max(0, min(view.top, len(rows) - room)))


def _page(view: View, page: Page) -> View:
    return replace(view, page=page) if page == "devices" and view.page == "device" else replace(view, page=page, top=0)


def _moved(key: str, view: View, rows: Sequence[str], room: int) -> View:
    steps = {"up": -1, "down": 1, "page-up": -room, "page-down": room, "home": -len(rows), "end": len(rows)}
    step = steps.get(key, 0)
    if view.page == "device":
        at = max(0, min(rows.index(view.device) + step, len(rows) - 1))
        return replace(view, device=rows[at])
    if view.page == "devices":
        return replace(view, selected=view.selected + step)
    return replace(view, top=view.top + step)


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
    """Return the names of the keys that a terminal has sent; unknown sequences are ignored."""
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
            if name := _SEQUENCES.get(text[1 : end + 1]):
                keys.append(name)
            text = text[end + 1 :]
    return keys
