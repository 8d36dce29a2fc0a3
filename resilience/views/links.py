"""The matrix of links in ``laggard top``: the page's matrix in characters. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from laggard.resilience.text import counted, printable
from laggard.resilience.views.grid import MAX_LABEL, Grid
from laggard.resilience.views.signs import sign_of_ratio
from laggard.resilience.views.snapshot import Snapshot
from laggard.telemetry.link_matrix import MAX_NAMES, LinkMatrix, matrix_of

MEANINGS = {
    "-": "10 % below the median",
    "·": "the median",
    "+": "10 % above",
    "#": "30 %",
    "@": "twice",
    "?": "never met",
    "▸": "found slow",
}
_MOST_DIGITS = len(str(MAX_NAMES))


def matrix_that_fits(snapshot: Snapshot, width: int, room: int) -> LinkMatrix | None:
    """Return a matrix that fits in so many columns and lines, one of which has the columns' names."""
    beside = MAX_LABEL + _MOST_DIGITS + 3  # the name of a row, its number and their spaces
    most = max(1, min(MAX_NAMES, room - 1, (width - beside) // (_MOST_DIGITS + 1)))
    return matrix_of(snapshot.links, snapshot.leaves, most)


def link_grid(matrix: LinkMatrix, accused: Mapping[str, Sequence[str]]) -> Grid:
    """Return where the cells lie: below a line with the columns' numbers, right of the rows' numbers and names."""
    # Behind the names of nodes that were found slow is a mark.
    count = len(matrix.names)
    digits = len(str(count))
    names = [_cut(printable(name)) for name in matrix.names]
    width = max(map(len, names))
    label, cell = digits + width + 3, digits + 1
    places = tuple((row + 1, label + column * cell) for row, column in _cells(matrix))
    marks = ["▸" if name in accused else " " for name in matrix.names]
    rows = [(row + 1, 0, f"{row + 1:>{digits}} {names[row]:<{width}} {marks[row]}") for row in range(count)]
    columns = [(0, label + at * cell, str(at + 1).rjust(cell)) for at in range(count)]
    return Grid(places, (*rows, *columns), cell)


def link_signs(matrix: LinkMatrix) -> list[str]:
    """Return the sign of each cell, in the order of the grid."""
    ratios = [matrix.ratio(row, column) for row, column in _cells(matrix)]
    return ["?" if math.isnan(ratio) else sign_of_ratio(ratio) for ratio in ratios]


def cell_names(matrix: LinkMatrix) -> list[str]:
    """Return what each cell is called, in the order of the grid."""
    return [_name_of(matrix, row, column) for row, column in _cells(matrix)]


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


def _cut(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"…{name[1 - MAX_LABEL :]}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
