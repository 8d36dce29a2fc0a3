"""The screen of ``laggard top``: pure functions from a snapshot and a view to what rich can print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from laggard.resilience.text import abbreviated, clock, counted
from laggard.resilience.views.grid import Grid, grid_of
from laggard.resilience.views.links import (
    cell_names,
    link_description,
    link_grid,
    link_legend,
    link_lines,
    link_summary,
    matrix_that_fits,
)
from laggard.resilience.views.map import Colouring, choices, colouring, description, label_of, legend, map_lines
from laggard.resilience.views.snapshot import DeviceState, Snapshot
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
from laggard.telemetry.link_matrix import LinkMatrix

Page = Literal["devices", "overview", "links", "nodes", "history", "metrics", "device"]
KEYS: Mapping[Page, str] = {
    "devices": "↑↓ move|Enter open|o map|s sort|r reverse|n nodes|l links|h history|m metrics",
    "overview": "↑↓←→ move|Enter open|c colour|d devices|n nodes|l links|h history|m metrics",
    "links": "↑↓←→ move|d devices|o map|n nodes|h history|m metrics",
    "nodes": "↑↓ scroll|d devices|o map|l links|h history|m metrics",
    "history": "↑↓ scroll|d devices|o map|n nodes|l links|m metrics",
    "metrics": "↑↓ scroll|d devices|o map|n nodes|l links|h history",
    "device": "↑↓ next device|Esc back|o map",
}
"""The keys of each page, the most useful first; those that do not fit are left out, and help and quit never."""
HELP: Mapping[str, str] = {
    "d": "the devices, the worst first",
    "o": "the map of all devices",
    "n": "the nodes",
    "l": "the links: who sends to whom how fast",
    "m": "the program's own metrics",
    "h": "what has happened, the newest first",
    "Enter": "all about the selected device; Esc goes back",
    "↑ ↓ ← →": "move; also PgUp, PgDn, Home, End",
    "/": "find a node or device (↑ ↓ the next, Enter stay, Esc back)",
    "s": "devices: the next sort order; r reverses it",
    "c": "map: colour by the next reading",
    "q": "quit; the job keeps running",
}
_ALWAYS = ("/ find", "? help", "q quit")

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class View:
    """What is on the screen."""

    page: Page = "devices"  # which page
    sort: Sort = "worst"  # order of the devices
    backwards: bool = False
    colour: int = 0  # how many times the map's colouring was changed
    selected: int = 0  # the selected row, and the first visible one
    top: int = 0
    # The device whose details are shown, or that was last selected, by name: its row changes as the order does
    device: str = ""
    back: Page = "devices"  # the page to which Esc leads from a device's details
    find: str | None = None  # the text that is being searched for; None outside a search
    help: bool = False  # whether the keys are explained


@dataclass(frozen=True, slots=True)
class Extent:
    """What a page has, and how much of it fits."""

    rows: Sequence[str]  # names of all its rows (of the map: of its devices; of the matrix: of its links), in order
    room: int  # number of rows, or lines of the map, that fit on the screen
    grid: Grid | None = None  # where the devices or links lie; None but for the map and the matrix
    matrix: LinkMatrix | None = None  # the matrix of links; None but for its page, or if no link was measured


def extent_of(snapshot: Snapshot, view: View, width: int, height: int, trouble: str = "") -> Extent:
    """Return what the page has on a terminal of this size."""
    fixed = len(header(snapshot, width, trouble)) + 2  # the lines of position and keys
    match view.page:
        case "overview":
            devices, by = _mapped(snapshot, view)
            room = max(1, height - fixed - 1 - len(legend(devices, by, width)))
            return Extent([device.name for device in devices], room, grid_of(devices, width, room))
        case "links":
            room = max(1, height - fixed - 1 - len(link_legend(width)))
            matrix = matrix_that_fits(snapshot, width, room)
            if matrix is None:
                return Extent([], room)
            return Extent(cell_names(matrix), room, link_grid(matrix, width), matrix)
        case "nodes":
            rows = [node.host for node in snapshot.nodes]
        case "metrics":
            rows = [metric.name for metric in snapshot.metrics]
        case "history":
            rows = [line.plain for line in log_lines(snapshot, width)]
        case _:
            rows = [device.name for device in sorted_devices(snapshot.devices, view.sort, backwards=view.backwards)]
    headings = view.page in {"devices", "nodes", "metrics"}
    return Extent(rows, max(1, height - fixed - headings))


def whole_screen(snapshot: Snapshot, view: View, extent: Extent, width: int, trouble: str = "") -> Layout:
    """Return what fills a terminal of this size: the header, as much of the page as fits, and the keys."""
    head = header(snapshot, width, trouble)
    screen = Layout()
    screen.split_column(
        Layout(Group(*head), size=len(head)),
        Layout(_position(snapshot, view, extent, width), size=1),
        Layout(_help(width) if view.help else _body(snapshot, view, extent, width)),
        Layout(_keys(view, extent.rows, width), size=1),
    )
    return screen


def _body(snapshot: Snapshot, view: View, extent: Extent, width: int) -> RenderableType:
    room = extent.room
    match view.page:
        case "devices":
            devices = sorted_devices(snapshot.devices, view.sort, backwards=view.backwards)
            return device_table(_window(devices, view, room), width, view.selected - view.top, snapshot)
        case "nodes":
            return node_table(_window(snapshot.nodes, view, room))
        case "metrics":
            return metric_table(_window(snapshot.metrics, view, room), snapshot.level)
        case "history":
            return Group(*_window(log_lines(snapshot, width), view, room))
        case "overview":
            return _map(snapshot, view, extent, width)
        case "links":
            return _links(snapshot, view, extent, width)
        case "device":
            (device,) = (device for device in snapshot.devices if device.name == view.device)
            return device_details(device, snapshot, width, room)


def _map(snapshot: Snapshot, view: View, extent: Extent, width: int) -> RenderableType:
    devices, by = _mapped(snapshot, view)
    if extent.grid is None or not devices:
        return Text("the nodes of this job have no devices", "dim")
    described = Text(description(devices[view.selected], by), "bold")
    described.truncate(width, overflow="ellipsis")
    lines = map_lines(devices, extent.grid, by, view.selected, view.top, extent.room)
    return Group(described, *lines, *legend(devices, by, width))


def _links(snapshot: Snapshot, view: View, extent: Extent, width: int) -> RenderableType:
    if extent.matrix is None or extent.grid is None:
        return Text("no link was measured in this launch so far: --detect=slow-link does that", "dim")
    accused = extent.matrix.accused(snapshot.slow_nodes)
    described = Text(link_description(extent.matrix, view.selected, accused) if extent.rows else "", "bold")
    described.truncate(width, overflow="ellipsis")
    lines = link_lines(extent.matrix, extent.grid, accused, view.selected)
    return Group(described, *lines[view.top : view.top + extent.room], *link_legend(width))


def _mapped(snapshot: Snapshot, view: View) -> tuple[list[DeviceState], Colouring]:
    """Return the devices in the order of the map, and what colours them."""
    devices = sorted_devices(snapshot.devices, "name")
    names = choices(devices)
    return devices, colouring(devices, names[view.colour % len(names)])


def _help(width: int) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, width=min(width, 78))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, meaning in HELP.items():
        table.add_row(key, meaning)
    table.add_row("", Text("any key closes this", "dim"))
    return table


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
        lines.append(Text(f"no answer from {abbreviated(snapshot.missing)}", "bold magenta"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _position(snapshot: Snapshot, view: View, extent: Extent, width: int) -> Text:
    total = len(extent.rows)
    match view.page:
        case "device":
            text = f" one of {len(snapshot.devices):,} devices"
        case "overview":
            names = choices(snapshot.devices)
            text = f" {total:,} devices by {label_of(names[view.colour % len(names)])}"
            if extent.grid is not None and extent.grid.height > extent.room:
                last = min(view.top + extent.room, extent.grid.height)
                text += f"; lines {view.top + 1} to {last} of {extent.grid.height}"
        case "links":
            text = f" {link_summary(extent.matrix)}" if extent.matrix is not None else " links"
        case page:
            first, last = min(view.top + 1, total), min(view.top + extent.room, total)
            text = f" {page} {first} to {last} of {total:,}"
    if view.page in {"devices", "device"}:
        text += f"; sorted by {view.sort}{', reversed' if view.backwards else ''}"
    if view.page in {"devices", "device", "overview"} and snapshot.level < 3:
        text += "; run with --telemetry-level=3 to see utilisation and power"
    return Text(text.ljust(width)[:width], "reverse")


def _keys(view: View, rows: Sequence[str], width: int) -> Text:
    if view.find is not None:
        is_there = any(view.find.lower() in row.lower() for row in rows)
        more = "↑↓ next  Enter stay  Esc back" if is_there else "not found"
        keys = Text.assemble((f" find: {view.find}▏", "bold"), f"  {more}")
    else:
        keys = Text(" ")
        for key in _shown_keys(view.page, width - 1):
            name, _, meaning = key.partition(" ")
            keys.append(name, "bold").append(f" {meaning}  ")
    keys.truncate(width)
    return keys


def _shown_keys(page: Page, width: int) -> list[str]:
    """Return the keys of a page for which there is room, and at the end those that are always there."""
    room = width - sum(len(key) + 2 for key in _ALWAYS)
    shown = []
    for key in KEYS[page].split("|"):
        if len(key) + 2 > room:
            break
        room -= len(key) + 2
        shown.append(key)
    return [*shown, *_ALWAYS]


def _window(rows: Sequence[_Row], view: View, room: int) -> Sequence[_Row]:
    return rows[view.top : view.top + max(0, room)]
