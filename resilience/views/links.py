"""The matrix of links in ``laggard top``: the page's matrix in characters. Pure.

Colour is never the only sign, as on the map of devices, whose signs and colours these are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.style import Style
from rich.text import Text

from laggard.resilience.text import counted, printable
from laggard.resilience.views.grid import MAX_LABEL, Grid
from laggard.resilience.views.map import PEERS, Colouring, filled, legend_lines, line_of
from laggard.resilience.views.snapshot import Snapshot
from laggard.telemetry.link_matrix import MAX_NAMES, LinkMatrix, matrix_of

_BY = Colouring(PEERS)
_NEVER, _NEVER_STYLE = "?", Style(dim=True)
_ACCUSED = Style(color="red", bold=True)
_MARK = "▸"
_MEANINGS = ((0.85, "10 % below the median"), (1.0, "the median"), (1.2, "10 % above"), (1.6, "30 %"), (2.0, "twice"))


def matrix_that_fits(snapshot: Snapshot, width: int, room: int) -> LinkMatrix | None:
    """Return a matrix that fits in so many columns and lines, one of which has the columns' names."""
    most = max(1, min(MAX_NAMES, room - 1, width - MAX_LABEL - 8))
    return matrix_of(snapshot.links, snapshot.leaves, most)


def link_grid(matrix: LinkMatrix, width: int) -> Grid:
    """Return where the cells lie: below a line with the columns' numbers, right of the rows' numbers and names."""
    count = len(matrix.names)
    digits = len(str(count))
    label = digits + 2 + min(MAX_LABEL, max(len(printable(name)) for name in matrix.names)) + 1
    cell = next((wide for wide in (digits + 1, 2) if label + wide * count <= width), 1)
    places = tuple((row + 1, label + column * cell) for row, column in _cells(matrix))
    rows = [(row + 1, 0, _row_label(row, matrix.names[row], digits, label)) for row in range(count)]
    columns = [(0, label + at * cell, str(at + 1)[-(cell - 1 or 1) :].rjust(cell)) for at in range(count)]
    return Grid(places, (*rows, *columns), cell, count + 1)


def cell_names(matrix: LinkMatrix) -> list[str]:
    """Return what each cell is called, in the order of the grid."""
    return [_name_of(matrix, row, column) for row, column in _cells(matrix)]


def link_lines(matrix: LinkMatrix, grid: Grid, accused: Mapping[str, Sequence[str]], selected: int) -> list[Text]:
    """Return the lines of the matrix; the rows and columns of nodes that were found slow are marked."""
    parts: dict[int, list[tuple[int, str, Style]]] = {line: [] for line in range(grid.height)}
    rows, columns = grid.labels[: len(matrix.names)], grid.labels[len(matrix.names) :]
    for name, (line, at, label), (top, left, number) in zip(matrix.names, rows, columns, strict=True):
        style = _ACCUSED if name in accused else Style()
        parts[line].append((at, label[:-1] + _MARK if name in accused else label, style))
        parts[top].append((left, number, style))
    for at, ((row, column), (line, left)) in enumerate(zip(_cells(matrix), grid.places, strict=True)):
        ratio = matrix.ratio(row, column)
        sign, style = (_NEVER, _NEVER_STYLE) if math.isnan(ratio) else (_BY.sign(ratio), filled(_BY.colour(ratio)))
        parts[line].append((left, sign.rjust(grid.cell), Style(reverse=True, bold=True) if at == selected else style))
    return [line_of(each) for each in parts.values()]


def link_legend(width: int) -> list[Text]:
    """Return what the cells mean, in as many lines as it takes."""
    ratios = [(_BY.sign(ratio), filled(_BY.colour(ratio)), meaning) for ratio, meaning in _MEANINGS]
    return legend_lines([*ratios, (_NEVER, _NEVER_STYLE, "never met"), (_MARK, _ACCUSED, "found slow")], width)


def link_description(matrix: LinkMatrix, selected: int, accused: Mapping[str, Sequence[str]]) -> str:
    """Return a cell's reading in words, as the page does."""
    row, column = _cells(matrix)[selected]
    seconds = float(matrix.seconds[row, column])
    ends = dict.fromkeys((matrix.names[row], matrix.names[column]))
    slow = [f"{printable(node)} was found slow" for name in ends for node in accused.get(name, ())]
    time = "never met" if math.isnan(seconds) else f"{_ms(seconds)}, {against_median(matrix.ratio(row, column))}"
    return "; ".join([f"{_name_of(matrix, row, column)}: {time}", *slow])


def link_summary(matrix: LinkMatrix) -> str:
    """Return how much there is, and what is left out."""
    text = f"{counted(matrix.n_links, 'link', 'links')}, median {_ms(matrix.median_s)}"
    if matrix.left_out:
        one, many = ("node", "nodes") if matrix.kind == "nodes" else ("leaf", "leaves")
        text += f"; the slowest, {counted(matrix.left_out, one, many)} left out"
    return f"{text}; rows send, columns receive"


def against_median(ratio: float) -> str:
    """Return in words how a time compares with the median of all links."""
    percent = 100 * (ratio - 1)
    if math.isnan(ratio):
        return "the median is 0"
    if ratio >= 1.5:
        return f"{ratio:.2g} times the median" if ratio < 99 else f"{ratio:.0f} times the median"
    if abs(percent) < 0.5:
        return "the median"
    return f"{abs(percent):.0f} % {'above' if percent > 0 else 'below'} the median"


def _cells(matrix: LinkMatrix) -> list[tuple[int, int]]:
    """Return row and column of each cell; a node has no link to itself, but there are links below a leaf."""
    numbers = range(len(matrix.names))
    return [(row, column) for row in numbers for column in numbers if row != column or matrix.kind == "leaves"]


def _name_of(matrix: LinkMatrix, row: int, column: int) -> str:
    here, there = printable(matrix.names[row]), printable(matrix.names[column])
    return f"below {here}" if row == column else f"{here} → {there}"


def _row_label(row: int, name: str, digits: int, label: int) -> str:
    room = label - digits - 2
    shown = printable(name)
    shown = shown if len(shown) <= room else f"…{shown[-room + 1 :]}"
    return f"{row + 1:>{digits}} {shown}".ljust(label - 1) + " "


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
