"""``laggard top``: the live view, on Textual. What its panes say is decided by pure functions; this only shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import redis
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from laggard.kvstore.errors import KVStoreError
from laggard.resilience.record import wording
from laggard.resilience.text import duration
from laggard.resilience.views.lines import device_lines, header, launch_lines, log_lines
from laggard.resilience.views.listing import MOST_BAR, Column, fitted
from laggard.resilience.views.map import Colouring, colourings, map_columns
from laggard.resilience.views.panes import LISTS, Lines, Listed, Words, shown_panes
from laggard.resilience.views.signs import legend
from laggard.resilience.views.snapshot import DeviceState, Snapshot
from laggard.resilience.views.tables import SORTS, device_columns, metric_columns, node_columns, sorted_devices
from laggard.telemetry.errors import NodeError


class Source(Protocol):
    """What is shown."""

    def snapshot(self) -> Snapshot:
        """Return the present state of the job."""

    def history(self, device: DeviceState) -> Mapping[str, Sequence[float]]:
        """Return recent values of a device's readings, by name."""


class Terminal(App[str]):
    """What is common: the terminal's own colours, so that it fits dark and light ones."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,ctrl+c", "quit", "quit")]

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"


class Chooser(Terminal):
    """Asks which of several jobs to show; its result is the name."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static(f"{len(self._names)} jobs are running: which one?")
        yield OptionList(*(Option(Text(name), id=name) for name in self._names))
        yield Footer(compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """End with the name that was chosen."""
        self.exit(event.option_id)


class Top(Terminal):
    """Shows a job until the user quits or the job ends; its result is the reason for ending, None if the user quit."""

    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "keys"),
        Binding("slash", "find", "find"),
        Binding("s", "sort", "sort"),
        Binding("c", "colour", "colour"),
        Binding("d", "look('devices')", "devices"),
        Binding("o", "look('map')", "map"),
        Binding("n", "look('nodes')", "nodes"),
        Binding("l", "look('launches')", "launches"),
        Binding("h", "look('history')", "history"),
        Binding("m", "look('metrics')", "metrics"),
        Binding("z", "zoom", "zoom"),
        Binding("escape", "all_devices", "all devices", show=False),
    ]

    def __init__(self, source: Source, has_ended: Callable[[], bool], interval_s: float) -> None:
        super().__init__()
        self._source, self._has_ended, self._interval_s = source, has_ended, interval_s
        self._snapshot: Snapshot | None = None
        self._history: tuple[str, Mapping[str, Sequence[float]]] = "", {}  # of the device of that name
        self._trouble = ""
        self._page, self._of_devices = "devices", "devices"  # the pane that was chosen, and how devices are shown
        self._sort, self._colour, self._search, self._zoomed = "worst", 0, "", False
        self._header = Lines("header")
        self._legend = Lines("legend")
        self._find = Input(placeholder="a part of the name of a node or device", id="find")
        self._lists = {
            "devices": Listed("devices", self._devices_pane),
            "map": Listed("map", self._map_pane, by_cell=True),
        }
        self._panes: dict[str, Listed | Words] = {
            **self._lists,
            "device": Words("device", self._device_pane),
            "nodes": Listed("nodes", self._nodes_pane),
            "metrics": Listed("metrics", self._metrics_pane),
            "launches": Words("launches", self._launches_pane),
            "history": Words("history", self._history_pane),
        }

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        devices, cells, device, nodes, metrics, launches, history = self._panes.values()
        yield self._header
        with Horizontal(id="upper"):
            yield Vertical(devices, cells, self._legend, id="left")
            yield Vertical(device, nodes, metrics, id="right")
        yield Horizontal(launches, history, id="lower")
        yield self._find
        yield Footer(compact=True)

    def on_ready(self) -> None:
        """Begin to follow the job."""
        self.action_look("devices")
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        """Take a snapshot at each interval, in a thread, since it waits for the nodes' answers."""
        taken_s = time.monotonic()
        while True:
            due_s = time.monotonic() + self._interval_s
            try:
                self._snapshot, self._history = await asyncio.to_thread(self._take, self._selected())
                self._trouble, taken_s = "", time.monotonic()
            except (redis.RedisError, KVStoreError, NodeError):
                if self._has_ended():
                    self.exit("the job has ended")
                    return
                silent = duration(time.monotonic() - taken_s)
                self._trouble = f"no answer from the job for {silent}: showing its last known status"
            self._draw()
            await asyncio.sleep(due_s - time.monotonic())

    def _take(self, selected: DeviceState | None) -> tuple[Snapshot, tuple[str, Mapping[str, Sequence[float]]]]:
        snapshot = self._source.snapshot()
        shown = selected or next(iter(self._in_order(snapshot)), None)
        return snapshot, (shown.name, self._source.history(shown)) if shown else ("", {})

    # ---- What the panes show

    def _colouring(self, snapshot: Snapshot) -> Colouring:
        choices = colourings(snapshot.devices)
        return choices[self._colour % len(choices)]

    def _in_order(self, snapshot: Snapshot | None, sort: str = "") -> list[DeviceState]:
        devices = snapshot.devices if snapshot else ()
        found = [each for each in devices if self._search.lower() in each.name.lower()]
        return sorted_devices(found, sort or self._sort)

    def _devices_pane(self, width: int) -> list[Column]:
        return fitted(device_columns(self._in_order(self._snapshot)), width, MOST_BAR)

    def _map_pane(self, width: int) -> list[Column]:
        if self._snapshot is None:
            return []
        by, devices = self._colouring(self._snapshot), self._in_order(self._snapshot, "name")
        self._legend.show(legend(by.meanings([by.sign_of(each) for each in devices]), width))
        return map_columns(devices, by, width)

    def _nodes_pane(self, width: int) -> list[Column]:
        nodes = self._snapshot.nodes if self._snapshot else ()
        found = [node for node in nodes if self._search.lower() in node.host.lower()] or nodes
        return fitted(node_columns(found), width, MOST_BAR)

    def _metrics_pane(self, width: int) -> list[Column]:
        return fitted(metric_columns(self._snapshot.metrics, self._snapshot.level), width) if self._snapshot else []

    def _device_pane(self, width: int) -> list[Text]:
        device = self._selected()
        if device is None or self._snapshot is None:
            return []
        name, history = self._history
        return device_lines(device, self._snapshot, history if name == device.name else {}, width)

    def _launches_pane(self, width: int) -> list[Text]:
        return launch_lines(self._snapshot, width) if self._snapshot else []

    def _history_pane(self, width: int) -> list[Text]:
        return log_lines(self._snapshot, width) if self._snapshot else []

    def _selected(self) -> DeviceState | None:
        name = self._lists[self._of_devices].chosen
        return next((each for each in (self._snapshot.devices if self._snapshot else ()) if each.name == name), None)

    def _arrange(self) -> None:
        """Show the panes that there is room for."""
        shown = shown_panes(self._page, self._of_devices, *self.size, zoomed=self._zoomed)
        for name, pane in [*self._panes.items(), ("legend", self._legend)]:
            pane.display = name in shown
        for name in ("left", "right", "lower", "upper"):
            box = self.query_one(f"#{name}")
            box.display = any(child.display for child in box.children)
        self.set_class(len(shown) < 6, "-one")
        self.query_one("#upper").set_class(len(shown) < 6, "-stacked")
        self.set_class(len(shown) < 6 and "device" in shown and self._page != "device", "-below")
        self.refresh_bindings()
        self._draw()

    def _draw(self) -> None:
        if self._snapshot is None:
            return
        self._header.show(header(self._snapshot, self.size.width - 2, self._trouble))
        for pane in self._panes.values():
            if pane.display:
                pane.draw()
        for name, title in self._titles(self._snapshot).items():
            self._panes[name].entitle(title)

    def _titles(self, snapshot: Snapshot) -> dict[str, str]:
        devices = f"{len(self._in_order(snapshot)):,} devices"
        devices += f" with '{self._search}'" if self._search else ""
        by = self._colouring(snapshot).label
        missing = "" if snapshot.level >= 3 else "; --telemetry-level=3 shows utilisation and power"
        return {
            "devices": f"{devices}, by {self._sort}{missing}",
            "map": f"{devices} by {by}",
            "device": self._lists[self._of_devices].chosen or "no device",
            "nodes": f"{len(snapshot.nodes):,} nodes",
            "metrics": "the program's metrics",
            "launches": f"launches; {wording.effective_time(snapshot.times)}",
            "history": "history",
        }

    # ---- What the user does

    def on_resize(self, event: Resize) -> None:
        """Show more or fewer panes."""
        del event
        self.call_after_refresh(self._arrange)

    @on(DataTable.RowHighlighted)
    @on(DataTable.CellHighlighted)
    def _moved(self, event: DataTable.RowHighlighted | DataTable.CellHighlighted) -> None:
        table = event.data_table
        if isinstance(table, Listed):
            table.notice()
            if table.wanted and table.id in LISTS:
                for each in self._lists.values():
                    each.wanted = table.wanted
                self._panes["device"].entitle(table.wanted)
                self._panes["device"].draw()

    def action_open(self) -> None:
        """Show all about the chosen device, or the devices of the chosen node."""
        table = self.focused
        if isinstance(table, Listed) and table.id == "nodes":
            self._search = f"{table.chosen} gpu"
        self.action_look("device" if table in self._lists.values() else self._of_devices)

    def action_look(self, page: str) -> None:
        """Show a pane, or go there."""
        self._page = page
        if page == "map" != self._of_devices:
            self._lists["map"].wanted = self._lists["devices"].chosen
        self._of_devices = page if page in LISTS else self._of_devices
        self._arrange()
        self._panes[page].focus()

    def action_sort(self) -> None:
        """Take the next order of devices."""
        orders = list(SORTS)
        self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
        self._lists["devices"].wanted = ""
        self._draw()

    def action_colour(self) -> None:
        """Colour the map by the next reading."""
        self._colour += 1
        self._draw()

    def action_zoom(self) -> None:
        """Give the chosen pane the whole screen, or show the others again."""
        self._zoomed = not self._zoomed
        focused = self.focused
        self._page = focused.id if focused is not None and focused.id and focused.has_class("pane") else self._page
        self._arrange()

    def action_find(self) -> None:
        """Ask for a part of a name."""
        self._find.display = True
        self._find.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show only the devices and nodes whose name has the text."""
        self._search = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Go back to what was found."""
        self._find.display = False
        self._panes[self._page].focus()

    def action_all_devices(self) -> None:
        """Show all devices again, and their list."""
        self._find.value = self._search = ""
        self.on_input_submitted()
        self.action_look(self._of_devices)

    def action_keys(self) -> None:
        """Show what each key does, or hide it."""
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what has an effect."""
        del parameters
        return {"sort": self._of_devices == "devices", "colour": self._of_devices == "map"}.get(action, True)
