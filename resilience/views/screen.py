"""The screen of ``laggard top``: pure functions from a snapshot and a view to what rich can print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from laggard.resilience.text import abbreviated, clock, counted
from laggard.resilience.views.grid import Grid, column_of, grid_of
from laggard.resilience.views.map import colourings, description
from laggard.resilience.views.signs import legend
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.tables import (
    device_details,
    device_table,
    latest_notable_line,
    log_lines,
    metric_table,
    node_table,
    sorted_devices,
)

Page = Literal["devices", "overview", "nodes", "history", "metrics"]
HELP: Mapping[str, str] = {
    "d": "the devices, the worst first",
    "o": "the map of all devices",
    "n": "the nodes",
    "m": "the program's own metrics",
    "h": "what has happened, the newest first",
    "Enter": "all about the selected device; Esc goes back",
    "↑ ↓ ← →": "move; also PgUp, PgDn, Home, End",
    "/": "find a node or device (↑ ↓ the next, Enter stay, Esc back)",
    "s": "devices: the next sort order",
    "c": "map: colour by the next reading",
    "q": "quit; the job keeps running",
}
_PAGES = " d devices  o map  n nodes  h history  m metrics "
_ALWAYS = " / find  ? help  q quit"


@dataclass(frozen=True, slots=True)
class View:
    """What is on the screen."""

    page: Page = "devices"  # which page
    sort: str = "worst"  # order of the devices
    colour: int = 0  # how many times the map's colouring was changed
    selected: int = 0  # the selected row or device of the map
    name: str = ""  # what it is called, by which it is found again when the order changes
    details: bool = False  # whether all about the selected device is shown
    find: str | None = None  # the text that is being searched for; None outside a search
    help: bool = False  # whether the keys are explained


@dataclass(frozen=True, slots=True)
class Body:
    """What a page has, and how much of it fits."""

    rows: Sequence[str]  # names of what can be selected, in order
    grid: Grid  # where each of them lies
    room: int  # number of lines that fit on the screen
    draw: Callable[[int, slice], RenderableType]  # given which is selected, and the lines in sight
    title: str = ""  # of a page that is not a table

    def in_sight(self, selected: int) -> slice:
        """Return the lines that are shown: around the selected one."""
        line = self.grid.places[selected][0] if self.rows else 0
        first = max(0, min(line - self.room // 2, self.grid.height - self.room))
        return slice(first, first + self.room)


def body_of(snapshot: Snapshot, view: View, width: int, height: int, trouble: str = "") -> Body:
    """Return what the page has on a terminal of this size."""
    room = height - len(header(snapshot, width, trouble)) - 2  # the lines of position and keys
    match view.page:
        case "overview":
            return _map(snapshot, view, width, room)
        case "nodes":
            nodes = snapshot.nodes
            return _table([node.host for node in nodes], room - 1, lambda _, lines: node_table(nodes[lines]))
        case "metrics":
            metrics, level = snapshot.metrics, snapshot.level
            return _table([each.name for each in metrics], room - 1, lambda _, at: metric_table(metrics[at], level))
        case "history":
            log = log_lines(snapshot, width)
            return _table([line.plain for line in log], room, lambda _, lines: Group(*log[lines]))
        case "devices":
            devices = sorted_devices(snapshot.devices, view.sort)
            return _table(
                [device.name for device in devices],
                room - 1,
                lambda at, lines: device_table(devices[lines], width, at - lines.start, snapshot),
            )


def settled(view: View, body: Body) -> View:
    """Return the view with its selection on the row of that name, or else within the rows."""
    rows = body.rows
    at = max(0, min(view.selected, len(rows) - 1))
    if view.name in rows and rows[at] != view.name:
        at = rows.index(view.name)
    return replace(view, selected=at, name=rows[at] if rows else view.name)


def whole_screen(snapshot: Snapshot, view: View, body: Body, width: int, trouble: str = "") -> Layout:
    """Return what fills a terminal of this size: the header, as much of the page as fits, and the keys."""
    head = header(snapshot, width, trouble)
    main = body.draw(view.selected, body.in_sight(view.selected))
    if view.help:
        main = _help(width)
    elif view.details:
        main = Group(*(device_details(each, snapshot) for each in snapshot.devices if each.name == view.name))
    screen = Layout()
    screen.split_column(
        Layout(Group(*head), size=len(head)),
        Layout(_position(snapshot, view, body, width), size=1),
        Layout(main),
        Layout(_keys(view, body.rows, width), size=1),
    )
    return screen


def _table(rows: Sequence[str], room: int, draw: Callable[[int, slice], RenderableType]) -> Body:
    return Body(rows, column_of(len(rows)), max(1, room), draw)


def _map(snapshot: Snapshot, view: View, width: int, room: int) -> Body:
    devices, choices = sorted_devices(snapshot.devices, "name"), colourings(snapshot.devices)
    by = choices[view.colour % len(choices)]
    signs, grid = [by.sign_of(device) for device in devices], grid_of(devices, width)
    below = legend(by.meanings(signs), width)

    def draw(at: int, lines: slice) -> RenderableType:
        if not devices:
            return Text("the nodes of this job have no devices", "dim")
        return Group(_described(description(devices[at], by), width), *grid.drawn(signs, at, lines), *below)

    title = f"{len(devices):,} devices by {by.label}"
    return Body([device.name for device in devices], grid, max(1, room - 1 - len(below)), draw, title)


def _described(words: str, width: int) -> Text:
    text = Text(words, "bold")
    text.truncate(width, overflow="ellipsis")
    return text


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
    if launch and (n_reserve := snapshot.n_nodes("reserve")):
        first.append(f", {n_reserve} in reserve")
    if n_excluded := snapshot.n_nodes("excluded"):
        first.append(f", {n_excluded} excluded", "red")
    lines = [first, latest_notable_line(snapshot)]
    if trouble:
        lines.append(Text(trouble, "bold red"))
    elif snapshot.missing:
        lines.append(Text(f"no answer from {abbreviated(snapshot.missing)}", "bold magenta"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _position(snapshot: Snapshot, view: View, body: Body, width: int) -> Text:
    total, lines = len(body.rows), body.in_sight(view.selected)
    text = body.title or f"{view.page} {min(lines.start + 1, total)} to {min(lines.stop, total)} of {total:,}"
    if view.page == "devices":
        text += f"; sorted by {view.sort}"
    if view.page in {"devices", "overview"} and snapshot.level < 3:
        text += "; run with --telemetry-level=3 to see utilisation and power"
    return Text(f" {text}".ljust(width)[:width], "reverse")


def _keys(view: View, rows: Sequence[str], width: int) -> Text:
    if view.find is not None:
        is_there = any(view.find.lower() in row.lower() for row in rows)
        more = "↑↓ next  Enter stay  Esc back" if is_there else "not found"
        keys = Text.assemble((f" find: {view.find}▏", "bold"), f"  {more}")
    else:
        fits = len(_PAGES) + len(_ALWAYS) <= width
        keys = Text(f"{_PAGES if fits else ''}{_ALWAYS}", "bold")
    keys.truncate(width)
    return keys
