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
from laggard.resilience.views.grid import Grid, neighbour
from laggard.resilience.views.screen import Extent, Page, View, extent_of, whole_screen
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.tables import SORTS
from laggard.telemetry.errors import NodeError

KEY_WAIT_S = 0.1
# The rest of a key's escape sequence follows its first byte at once, usually over ssh too.
SEQUENCE_S = 0.05
_PAGES: dict[str, Page] = {"d": "devices", "o": "overview", "n": "nodes", "h": "history", "m": "metrics", "l": "links"}
_WITH_DEVICES = ("devices", "overview")
_WITH_SELECTION = (*_WITH_DEVICES, "links")
# Of a selection: to be found by the device's name.
_BY_NAME = -1
_NAMED = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
_SEQUENCES = {
    "[A": "up",
    "OA": "up",
    "[B": "down",
    "OB": "down",
    "[C": "right",
    "OC": "right",
    "[D": "left",
    "OD": "left",
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
                extent = extent_of(snapshot, view, width, height, trouble)
                view = clamped(view, extent)
                live.update(whole_screen(snapshot, view, extent, width, trouble), refresh=True)
                drawn = snapshot.taken_s, view, width, height, trouble
            for key in keyboard.read(KEY_WAIT_S):
                before, following = view, after_key(key, view, extent)
                if following is None:
                    return ""
                view = following
                if (view.page, view.sort, view.backwards) != (before.page, before.sort, before.backwards):
                    extent = extent_of(snapshot, view, width, height, trouble)
                    view = clamped(view, extent)
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


def after_key(key: str, view: View, extent: Extent) -> View | None:
    """Return the view after a key was pressed; None to quit."""
    if view.find is not None:
        return clamped(_searched(key, view, view.find, extent), extent)
    if key == "q":
        return None
    if view.help or key == "?":
        return replace(view, help=not view.help)
    if key in _PAGES:
        return _turned(view, _PAGES[key], extent.rows)
    match key:
        case "/":
            return replace(view, find="")
        case "s" if view.page == "devices":
            following = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
            return replace(view, sort=following, selected=0, top=0)
        case "r" if view.page == "devices":
            return replace(view, backwards=not view.backwards, selected=0, top=0)
        case "c" if view.page == "overview":
            return replace(view, colour=view.colour + 1)
        case "enter" if view.page in _WITH_DEVICES and extent.rows:
            return replace(view, page="device", device=extent.rows[view.selected], back=view.page)
        case "escape" if view.page == "device":
            return _turned(view, view.back, extent.rows)
    return clamped(_moved(key, view, extent), extent)


def clamped(view: View, extent: Extent) -> View:
    """Return the view with its selection within the rows, and visible."""
    rows, room = extent.rows, extent.room
    if view.page == "device" or (view.selected == _BY_NAME and view.device in rows):
        view = replace(view, selected=rows.index(view.device))
    selected = max(0, min(view.selected, len(rows) - 1))
    if extent.grid is not None and rows:
        line = extent.grid.places[selected][0]
        top = max(line - room + 1, min(view.top, line))
        return replace(view, selected=selected, top=max(0, min(top, extent.grid.height - room)))
    if view.page in {"devices", "device"}:
        top = max(selected - room + 1, min(view.top, selected))
        return replace(view, selected=selected, top=max(0, min(top, len(rows) - 1)))
    return replace(view, top=max(0, min(view.top, len(rows) - room)))


def _turned(view: View, page: Page, rows: Sequence[str]) -> View:
    """Return the view of another page; the selected device stays selected wherever there are devices."""
    if view.page in _WITH_DEVICES and rows:
        view = replace(view, device=rows[view.selected])
    return replace(view, page=page, top=0, selected=_BY_NAME if page in _WITH_DEVICES else view.selected)


def _moved(key: str, view: View, extent: Extent) -> View:
    rows, room = extent.rows, extent.room
    if extent.grid is not None:
        return replace(view, selected=_moved_on_map(key, view.selected, extent.grid, room)) if rows else view
    steps = {"up": -1, "down": 1, "page-up": -room, "page-down": room, "home": -len(rows), "end": len(rows)}
    step = steps.get(key, 0)
    if view.page == "device":
        at = max(0, min(rows.index(view.device) + step, len(rows) - 1))
        return replace(view, device=rows[at])
    if view.page == "devices":
        return replace(view, selected=view.selected + step)
    return replace(view, top=view.top + step)


def _moved_on_map(key: str, at: int, grid: Grid, room: int) -> int:
    lines = {"up": -1, "down": 1, "page-up": -room, "page-down": room}
    if key in lines:
        return neighbour(grid, at, lines[key])
    return {"left": at - 1, "right": at + 1, "home": 0, "end": len(grid.places) - 1}.get(key, at)


def _searched(key: str, view: View, find: str, extent: Extent) -> View:
    """Return the view after a key within a search; it follows the text to the next row that contains it."""
    match key:
        case "enter" | "escape":
            return replace(view, find=None)
        case "backspace":
            find = find[:-1]
        case "up" | "down":
            return _at_row(view, found(extent.rows, find, _row_of(view, extent.rows), -1 if key == "up" else 1), extent)
        case _ if len(key) == 1 and key.isprintable():
            find += key
    return _at_row(replace(view, find=find), found(extent.rows, find, _row_of(view, extent.rows), 0), extent)


def found(rows: Sequence[str], text: str, at: int, step: int) -> int:
    """Return the next row (``step`` 1), or the one before (-1), that contains a text; ``at`` if there is none."""
    # With a step of 0 the row `at` itself comes first.
    there = [number for number, row in enumerate(rows) if text.lower() in row.lower()]
    if step < 0:
        return next((number for number in reversed(there) if number < at), at)
    after = (number for number in there if number >= at + step)
    return next(after, there[0] if there and step == 0 else at)


def _row_of(view: View, rows: Sequence[str]) -> int:
    if view.page == "device":
        return rows.index(view.device)
    return view.selected if view.page in _WITH_SELECTION else view.top


def _at_row(view: View, at: int, extent: Extent) -> View:
    if view.page == "device":
        return replace(view, device=extent.rows[at])
    return replace(view, selected=at) if view.page in _WITH_SELECTION else replace(view, top=at)


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
            keys.append(_NAMED.get(text[0], text[0]))
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
