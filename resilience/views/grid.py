"""Where each cell of a picture in ``laggard top`` lies, and its lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.style import Style
from rich.text import Text

from laggard.resilience.views.signs import STYLES
from laggard.resilience.views.snapshot import DeviceState

MAX_LABEL = 20  # a longer name of a node is cut, so that some cells fit beside it on the narrowest terminal
CELL = 2  # columns of a device: its sign, and a space before it
_GAP = 2  # columns between two nodes
_SELECTED = Style(reverse=True, bold=True)


@dataclass(frozen=True, slots=True)
class Grid:
    """Where each cell lies."""

    places: tuple[tuple[int, int], ...]  # line and column of each cell
    labels: tuple[tuple[int, int, str], ...] = ()  # line, column and text of each name

    @property
    def height(self) -> int:
        """Number of lines."""
        return 1 + max([*(line for line, _ in self.places), *(line for line, *_ in self.labels)], default=-1)

    def neighbour(self, at: int, lines: int) -> int:
        """Return the cell that lies this many lines below (or above, if negative), or as far as there are lines."""
        line, column = self.places[at]
        there = sorted({each for each, _ in self.places})
        wanted = there[max(0, min(there.index(line) + lines, len(there) - 1))]
        on_line = (other for other, (each, _) in enumerate(self.places) if each == wanted)
        return min(on_line, key=lambda other: abs(self.places[other][1] - column))

    def drawn(self, signs: Iterable[str], selected: int, lines: slice) -> list[Text]:
        """Return the lines in sight, given the sign of each cell."""
        parts: dict[int, list[tuple[int, str, Style]]] = {line: [] for line in range(self.height)[lines]}
        for line, column, text in self.labels:
            parts.get(line, []).append((column, text, Style()))
        for at, ((line, column), sign) in enumerate(zip(self.places, signs, strict=True)):
            parts.get(line, []).append((column, sign.rjust(CELL), _SELECTED if at == selected else STYLES[sign]))
        return [_line_of(each) for each in parts.values()]


def column_of(count: int) -> Grid:
    """Return the places of the rows of a table."""
    return Grid(tuple((line, 0) for line in range(count)))


def grid_of(devices: Sequence[DeviceState], width: int) -> Grid:
    """Return the places of devices, in a block for each node beside its name."""
    nodes = [(host, len(list(group))) for host, group in groupby(devices, lambda device: device.host)]
    most = max((count for _, count in nodes), default=1)
    label = min(MAX_LABEL, max((len(host) for host, _ in nodes), default=0)) + 1
    per_line = max(1, min(most, (width - label) // CELL))
    block = label + per_line * CELL
    columns = max(1, (width + _GAP) // (block + _GAP))
    lines = -(-most // per_line)
    places: list[tuple[int, int]] = []
    labels = []
    for number, (host, count) in enumerate(nodes):
        line, column = number // columns * lines, number % columns * (block + _GAP)
        labels.append((line, column, host if len(host) < label else f"{host[: label - 2]}…"))
        places += [(line + at // per_line, column + label + at % per_line * CELL) for at in range(count)]
    return Grid(tuple(places), tuple(labels))


def _line_of(parts: Sequence[tuple[int, str, Style]]) -> Text:
    """Return texts at their columns as one line."""
    line = Text(no_wrap=True)
    for column, text, style in sorted(parts, key=lambda part: part[0]):
        line.append(" " * (column - len(line)))
        line.append(text, style)
    return line
