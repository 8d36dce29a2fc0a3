"""The panes of ``laggard top``: which are shown, and widgets that draw what a function makes for their width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widget import Widget
from textual.widgets import DataTable, Static
from textual.widgets.data_table import CursorType

from laggard.resilience.views.listing import Cell, Column

WIDE, TALL = 110, 32  # columns and lines of a terminal that has room for all panes
ROOM_BELOW = 24  # lines of a terminal that has room for the selected device below the others
LISTS = ("devices", "map")
OTHERS = ("device", "nodes", "metrics", "launches", "history")


def shown_panes(page: str, of_devices: str, width: int, height: int, *, zoomed: bool) -> frozenset[str]:
    """Return the panes that are shown: all, or the chosen one, and below a list of devices the selected one."""
    if width >= WIDE and height >= TALL and not zoomed:
        panes = {of_devices, *OTHERS}
    else:
        panes = {page, "device"} if page in LISTS and height >= ROOM_BELOW and not zoomed else {page}
    return frozenset(panes | ({"legend"} if "map" in panes else set()))


class Lines(Static):
    """Lines of text that are drawn again only if they have changed."""

    def __init__(self, name: str = "") -> None:
        super().__init__(id=name or None, markup=False)
        self._now: list[Text] = []

    def show(self, lines: list[Text]) -> None:
        """Show these lines."""
        before, self._now = self._now, lines
        if lines != before:
            # The place of everything else is found anew only if there are more or fewer lines: that is costly.
            self.update(Text("\n", no_wrap=True).join(lines), layout=len(lines) != len(before))


class Titled(Widget):
    """A pane with a title."""

    _title = ""

    def entitle(self, title: str) -> None:
        """Set the title, which is no markup, if it has changed."""
        if title != self._title:
            self._title, self.border_title = title, Text(title)


class Words(VerticalScroll, Titled):
    """A pane of text."""

    def __init__(self, name: str, make: Callable[[int], list[Text]]) -> None:
        super().__init__(id=name, classes="pane")
        self._make = make
        self._lines = Lines()

    def compose(self) -> ComposeResult:
        """Put the text in its place."""
        yield self._lines

    def draw(self) -> None:
        """Draw the text for the present width."""
        self._lines.show(self._make(self.size.width - 1))

    on_resize = draw


class Listed(DataTable[Text], Titled):
    """A pane with a table, of which only the cells that have changed are drawn again."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "app.open", "details", show=False)]

    def __init__(self, name: str, make: Callable[[int], Sequence[Column]], *, by_cell: bool = False) -> None:
        kind: CursorType = "cell" if by_cell else "row"
        super().__init__(
            id=name,
            classes="pane",
            cursor_type=kind,
            cursor_foreground_priority="renderable",
            show_header=not by_cell,
            cell_padding=0,
        )
        self.wanted = (
            ""  # the name of what the user has chosen: the cursor follows it; empty: it stays at the beginning
        )
        self._make = make
        self._gap = "" if by_cell else " "
        self._columns: Sequence[Column] = ()
        self._rows: list[tuple[Cell, ...]] = []
        self._placed = Coordinate(0, 0)  # where the cursor was, as far as it is known

    @property
    def chosen(self) -> str:
        """The name of what the cursor is on; empty if there is nothing."""
        row, column = self.cursor_coordinate
        return (self._rows[row][column].name or self._rows[row][0].name) if row < len(self._rows) else ""

    def notice(self) -> None:
        """Remember what the user has moved the cursor to."""
        if self.cursor_coordinate != self._placed:
            self._placed, self.wanted = self.cursor_coordinate, self.chosen

    def draw(self) -> None:
        """Draw what has changed, and let the cursor follow what the user has chosen."""
        self.notice()
        before, columns_before = self._rows, self._columns
        self._columns = self._make(self.size.width - 1)
        self._rows = list(zip(*(column.cells for column in self._columns), strict=True))
        with self.prevent(DataTable.RowHighlighted, DataTable.CellHighlighted):
            if _shape(columns_before) != _shape(self._columns):
                self.clear(columns=True)
                for column in self._columns:
                    self.add_column(self._text(Cell(column.heading), column), width=column.width + len(self._gap))
                for row in self._rows:
                    self.add_row(*map(self._text, row, self._columns))
            else:
                self._update(before)
            at = ((y, x) for y, row in enumerate(self._rows) for x, cell in enumerate(row) if cell.name == self.wanted)
            place = Coordinate(*next(at, (0, 0)) if self.wanted else (0, 0))
            if place != self.cursor_coordinate:
                self.move_cursor(row=place.row, column=place.column)
            self._placed = self.cursor_coordinate

    on_resize = draw

    def _update(self, before: Sequence[tuple[Cell, ...]]) -> None:
        for y, (old, new) in enumerate(zip(before, self._rows, strict=True)):
            if old != new:
                for x, (was, cell) in enumerate(zip(old, new, strict=True)):
                    if was != cell:
                        self.update_cell_at(Coordinate(y, x), self._text(cell, self._columns[x]))

    def _text(self, cell: Cell, column: Column) -> Text:
        text = Text(cell.text, cell.style, no_wrap=True)
        text.align("right" if column.right else "left", column.width)
        return text.append(self._gap)


def _shape(columns: Sequence[Column]) -> list[tuple[str, int, int]]:
    return [(column.heading, column.width, len(column.cells)) for column in columns]
