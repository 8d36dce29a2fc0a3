"""``laggard top``: the live view. What a key does is decided purely; only :func:`run_top` touches the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import redis
from rich.console import Console
from rich.live import Live

from kvstore.errors import KVStoreError
from resilience.record.words import duration
from resilience.views.keys import Keyboard
from resilience.views.screen import Page, View, room_for, rows_of, whole_screen
from resilience.views.snapshot import Snapshot
from resilience.views.tables import SORTS
from telemetry.bus import NodeError

__all__ = ["pressed", "run_top", "within"]

KEY_WAIT_S = 0.1
_PAGES: dict[str, Page] = {"d": "devices", "n": "nodes", "h": "history", "m": "metrics"}


def pressed(key: str, view: View, rows: Sequence[str], room: int) -> View | None:
    """Return what is looked at after a key was pressed; None to leave.

    Parameters
    ----------
    key
        Its name, as :mod:`resilience.views.keys` gives it.
    view
        What is looked at now.
    rows
        Names of the page's rows, in its order.
    room
        How many of them fit on the screen.
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
            return replace(view, page="depth", device=rows[view.selected])
        case "escape" if view.page == "depth":
            return replace(view, page="devices")
    return within(_moved(key, view, rows, room), rows, room)


def within(view: View, rows: Sequence[str], room: int) -> View:
    """Return the view with its selection among the rows there are, and in sight."""
    if view.page == "depth":
        view = replace(view, selected=rows.index(view.device))
    selected = max(0, min(view.selected, len(rows) - 1))
    if view.page in {"devices", "depth"}:
        top = max(selected - room + 1, min(view.top, selected))
        return replace(view, selected=selected, top=max(0, min(top, len(rows) - 1)))
    return replace(view, top=max(0, min(view.top, len(rows) - room)))


def run_top(take: Callable[[], Snapshot], has_ended: Callable[[], bool], interval_s: float, console: Console) -> str:
    """Show a job until somebody leaves or it has ended; return a word of farewell.

    Parameters
    ----------
    take
        Takes a snapshot.
    has_ended
        Whether the job has ended.
    interval_s
        Seconds from one snapshot to the next.
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
            if drawn != (snapshot.taken_s, view, width, height, trouble):  # sorting and drawing have their price
                rows = rows_of(snapshot, view, width)
                room = room_for(snapshot, view.page, width, height, trouble)
                view = within(view, rows, room)
                live.update(whole_screen(snapshot, view, width, height, trouble), refresh=True)
                drawn = snapshot.taken_s, view, width, height, trouble
            for key in keyboard.read(KEY_WAIT_S):
                before, following = view, pressed(key, view, rows, room)
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
                    trouble = f"no answer from the job for {duration(silent_s)}: this is how it stood then"
                taking = None
            if taking is None and time.monotonic() >= due_s:
                due_s = time.monotonic() + interval_s
                taking = executor.submit(take)


def _page(view: View, page: Page) -> View:
    return replace(view, page=page) if page == "devices" and view.page == "depth" else replace(view, page=page, top=0)


def _moved(key: str, view: View, rows: Sequence[str], room: int) -> View:
    steps = {"up": -1, "down": 1, "page-up": -room, "page-down": room, "home": -len(rows), "end": len(rows)}
    step = steps.get(key, 0)
    if view.page == "depth":
        at = max(0, min(rows.index(view.device) + step, len(rows) - 1))
        return replace(view, device=rows[at])
    if view.page == "devices":
        return replace(view, selected=view.selected + step)
    return replace(view, top=view.top + step)
