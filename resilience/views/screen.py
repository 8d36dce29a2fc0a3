"""The screen of ``laggard top``: pure functions from a snapshot and a view to what rich can print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from laggard.resilience.text import abbreviated, clock, counted
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.tables import (
    Sort,
    device_details,
    device_table,
    latest_notable_line,
    log_lines,
    metric_table,
    node_table,
    sorted_devices,
)

__all__ = ["KEYS", "Page", "View", "header", "room_for", "rows_of", "whole_screen"]

Page = Literal["devices", "nodes", "history", "metrics", "device"]
KEYS: Mapping[Page, str] = {
    "devices": "↑↓ PgUp PgDn Enter open  s sort r reverse  n nodes h history m metrics  q quit",
    "nodes": "↑↓ PgUp PgDn scroll  d devices  h history  m metrics  q quit",
    "history": "↑↓ PgUp PgDn scroll  d devices  n nodes  m metrics  q quit",
    "metrics": "↑↓ PgUp PgDn scroll  d devices  n nodes  h history  q quit",
    "device": "↑↓ next device  Esc or d back to all devices  q quit",
}

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class View:
    """What is on the screen.

    Attributes
    ----------
    page
        Which page.
    sort, backwards
        Order of the devices.
    selected, top
        The selected row, and the first visible one.
    device
        The device whose details are shown, by name: its row changes as the order does.
    """

    page: Page = "devices"
    sort: Sort = "worst"
    backwards: bool = False
    selected: int = 0
    top: int = 0
    device: str = ""


def whole_screen(snapshot: Snapshot, view: View, width: int, height: int, trouble: str = "") -> Layout:
    """Return what fills a terminal of this size: the header, as much of the page as fits, and the keys."""
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
            body = Group(*_window(log_lines(snapshot, width), view, room))
        case "device":
            (device,) = (device for device in snapshot.devices if device.name == view.device)
            body = device_details(device, snapshot, width, room)
    screen = Layout()
    screen.split_column(
        Layout(Group(*head), size=len(head)),
        Layout(_position(snapshot, view, room, width), size=1),
        Layout(body),
        Layout(_keys(view.page, width), size=1),
    )
    return screen


def header(snapshot: Snapshot, width: int, trouble: str = "") -> list[Text]:
    """Return the lines above every page: the job, its nodes, and the newest notable line of its log."""
    timeline = snapshot.timeline
    launch = timeline.launches[-1] if timeline.launches else None
    first = Text.assemble(
        (timeline.name, "bold"),
        f"  {clock(snapshot.taken_s - timeline.began_s)}",
        f"  launch {launch.number}" if launch else "  preparing the first launch",
        f"  on {counted(len(launch.nodes), 'node', 'nodes')}" if launch else "",
    )
    reserve, excluded = snapshot.of("reserve"), snapshot.of("excluded")
    if launch and reserve:
        first.append(f", {len(reserve)} in reserve")
    if excluded:
        first.append(f", {len(excluded)} excluded", "red")
    lines = [first, latest_notable_line(snapshot)]
    if trouble:
        lines.append(Text(trouble, "bold red"))
    elif snapshot.missing:
        lines.append(Text(f"no answer from {abbreviated(snapshot.missing)}", "bold yellow"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def room_for(snapshot: Snapshot, page: Page, width: int, height: int, trouble: str = "") -> int:
    """Return how many rows of a page fit on a terminal of this size."""
    fixed = 2 + (page in {"devices", "nodes", "metrics"})  # the lines of position and keys, and a table's headings
    return max(1, height - len(header(snapshot, width, trouble)) - fixed)


def rows_of(snapshot: Snapshot, view: View, width: int) -> list[str]:
    """Return the names of all rows of a page, in order."""
    match view.page:
        case "nodes":
            return [node.host for node in snapshot.nodes]
        case "metrics":
            return [metric.name for metric in snapshot.metrics]
        case "history":
            return [line.plain for line in log_lines(snapshot, width)]
    return [device.name for device in sorted_devices(snapshot.devices, view.sort, backwards=view.backwards)]


def _position(snapshot: Snapshot, view: View, room: int, width: int) -> Text:
    if view.page == "device":
        text = f" one of {len(snapshot.devices):,} devices"
    else:
        total = len(rows_of(snapshot, view, width))
        first, last = min(view.top + 1, total), min(view.top + room, total)
        text = f" {view.page} {first} to {last} of {total:,}"
    if view.page in {"devices", "device"}:
        text += f"; sorted by {view.sort}{', reversed' if view.backwards else ''}"
        text += "" if snapshot.level >= 3 else "; run with --telemetry-level=3 to see utilisation and power"
    return Text(text.ljust(width)[:width], "black on cyan")


def _keys(page: Page, width: int) -> Text:
    keys = Text(f" {KEYS[page]}".ljust(width), "black on white")
    keys.truncate(width)
    return keys


def _window(rows: Sequence[_Row], view: View, room: int) -> Sequence[_Row]:
    return rows[view.top : view.top + max(0, room)]
