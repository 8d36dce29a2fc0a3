"""The whole screen of ``laggard top``: pure, from a snapshot and what somebody looks at to something rich can print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from resilience.record.words import clock, some
from resilience.views.snapshot import Snapshot
from resilience.views.tables import (
    Sort,
    device_in_depth,
    device_table,
    metric_table,
    news,
    node_table,
    sorted_devices,
    story_lines,
)

__all__ = ["KEYS", "Page", "View", "header", "room_for", "rows_of", "whole_screen"]

Page = Literal["devices", "nodes", "history", "metrics", "depth"]
KEYS: Mapping[Page, str] = {
    "devices": "↑↓ PgUp PgDn Enter depth  s sort r reverse  n nodes h history m metrics  q quit",
    "nodes": "↑↓ PgUp PgDn scroll  d devices  h history  m metrics  q quit",
    "history": "↑↓ PgUp PgDn scroll  d devices  n nodes  m metrics  q quit",
    "metrics": "↑↓ PgUp PgDn scroll  d devices  n nodes  h history  q quit",
    "depth": "↑↓ next device  Esc or d back to all devices  q quit",
}

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class View:
    """What somebody looks at: a page, an order, the row that is selected, the one at the top, and the device in depth.

    The device has a name here: in the order of the worst its row changes all the time.
    """

    page: Page = "devices"
    sort: Sort = "worst"
    backwards: bool = False
    selected: int = 0
    top: int = 0
    device: str = ""


def whole_screen(snapshot: Snapshot, view: View, width: int, height: int, trouble: str = "") -> Layout:
    """Return what fills a terminal of this size: the header, as much of the page as there is room for, the keys."""
    head = header(snapshot, width, trouble)
    room = room_for(snapshot, view.page, width, height, trouble)
    body: RenderableType
    match view.page:
        case "devices":
            devices = sorted_devices(snapshot.devices, view.sort, backwards=view.backwards)
            body = device_table(_window(devices, view, room), width, view.selected - view.top, snapshot)
        case "nodes":
            body = node_table(_window(snapshot.nodes, view, room))
        case "metrics":
            body = metric_table(_window(snapshot.metrics, view, room), snapshot.level)
        case "history":
            body = Group(*_window(story_lines(snapshot, width), view, room))
        case "depth":
            (device,) = (device for device in snapshot.devices if device.name == view.device)
            body = device_in_depth(device, snapshot, width, room)
    screen = Layout()
    screen.split_column(
        Layout(Group(*head), size=len(head)),
        Layout(_where(snapshot, view, room, width), size=1),
        Layout(body),
        Layout(_keys(view.page, width), size=1),
    )
    return screen


def header(snapshot: Snapshot, width: int, trouble: str = "") -> list[Text]:
    """Return the lines that stand above every page: the job, its nodes, and its latest news."""
    story = snapshot.story
    launch = story.launches[-1] if story.launches else None
    first = Text.assemble(
        (story.name, "bold"),
        f"  {clock(snapshot.taken_s - story.began_s)}",
        f"  launch {launch.number}" if launch else "  the first launch is being prepared",
        f"  on {_count(len(launch.nodes), 'node', 'nodes')}" if launch else "",
    )
    reserve, out = snapshot.of("reserve"), snapshot.of("left out")
    if launch and reserve:
        first.append(f", {len(reserve)} in reserve")
    if out:
        first.append(f", {len(out)} left out", "red")
    lines = [first, news(snapshot)]
    if trouble:
        lines.append(Text(trouble, "bold red"))
    elif snapshot.missing:
        lines.append(Text(f"no answer from {some(snapshot.missing)}", "bold yellow"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def room_for(snapshot: Snapshot, page: Page, width: int, height: int, trouble: str = "") -> int:
    """Return how many rows of a page fit on a terminal of this size."""
    own = 2 + (page in {"devices", "nodes", "metrics"})  # the lines on what is shown and on the keys, and headings
    return max(1, height - len(header(snapshot, width, trouble)) - own)


def rows_of(snapshot: Snapshot, view: View, width: int) -> list[str]:
    """Return the names of all rows of a page, in its order."""
    match view.page:
        case "nodes":
            return [node.host for node in snapshot.nodes]
        case "metrics":
            return [metric.name for metric in snapshot.metrics]
        case "history":
            return [line.plain for line in story_lines(snapshot, width)]
    return [device.name for device in sorted_devices(snapshot.devices, view.sort, backwards=view.backwards)]


def _where(snapshot: Snapshot, view: View, room: int, width: int) -> Text:
    if view.page == "depth":
        words = f" one of {len(snapshot.devices):,} devices"
    else:
        total = len(rows_of(snapshot, view, width))
        first, last = min(view.top + 1, total), min(view.top + room, total)
        words = f" {view.page} {first} to {last} of {total:,}"
    if view.page in {"devices", "depth"}:
        words += f"; sorted by {view.sort}{', reversed' if view.backwards else ''}"
        words += "" if snapshot.level >= 3 else "; run with --telemetry-level=3 to see utilisation and power"
    return Text(words.ljust(width)[:width], "black on cyan")


def _keys(page: Page, width: int) -> Text:
    keys = Text(f" {KEYS[page]}".ljust(width), "black on white")
    keys.truncate(width)
    return keys


def _window(rows: Sequence[_Row], view: View, room: int) -> Sequence[_Row]:
    return rows[view.top : view.top + max(0, room)]


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
