"""Where each device lies on the map of ``laggard top``: a block of cells for each node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from laggard.resilience.views.snapshot import DeviceState

MAX_LABEL = 20
_Layout = tuple[bool, int]
# From the roomiest: with the nodes' names or packed, and columns per device.
_LAYOUTS: tuple[_Layout, ...] = ((True, 2), (True, 1), (False, 2), (False, 1))


@dataclass(frozen=True, slots=True)
class Grid:
    """Where each device lies."""

    places: tuple[tuple[int, int], ...]  # line and column of each device, in the order of the devices
    # Line, column and text of each name; none if the nodes are too many to be named
    labels: tuple[tuple[int, int, str], ...]
    cell: int  # columns per device
    height: int  # number of lines


def grid_of(devices: Sequence[DeviceState], width: int, room: int) -> Grid:
    """Return the roomiest grid of which all lines fit, or else the tightest."""
    nodes = [(host, len(list(group))) for host, group in groupby(devices, lambda device: device.host)]
    for named, cell in _LAYOUTS:
        grid = _arranged(nodes, max(1, width), named=named, cell=cell)
        if grid is not None and grid.height <= room:
            return grid
    return grid or Grid((), (), 1, 0)


def _arranged(nodes: Sequence[tuple[str, int]], width: int, *, named: bool, cell: int) -> Grid | None:
    """Return a grid of blocks; None if not even one cell fits beside a name."""
    most = max((count for _, count in nodes), default=1)
    label = min(MAX_LABEL, max((len(host) for host, _ in nodes), default=0)) + 1 if named else 0
    per_line = min(most, (width - label) // cell)
    if per_line < 1:
        return None
    gap = 2 if named else 1 if most > 1 else 0
    block = label + per_line * cell
    columns = max(1, (width + gap) // (block + gap))
    lines = -(-most // per_line)
    places: list[tuple[int, int]] = []
    labels = []
    for number, (host, count) in enumerate(nodes):
        line, column = number // columns * lines, number % columns * (block + gap)
        if named:
            labels.append((line, column, host if len(host) < label else f"{host[: label - 2]}…"))
        places += [(line + at // per_line, column + label + at % per_line * cell) for at in range(count)]
    return Grid(tuple(places), tuple(labels), cell, -(-len(nodes) // columns) * lines)


def neighbour(grid: Grid, at: int, lines: int) -> int:
    """Return the device that lies this many lines below (or above, if negative), or as far as there are lines."""
    line, column = grid.places[at]
    there = sorted({each for each, _ in grid.places})
    wanted = there[max(0, min(there.index(line) + lines, len(there) - 1))]
    return min(_on_line(grid, wanted), key=lambda other: abs(grid.places[other][1] - column))


def _on_line(grid: Grid, wanted: int) -> Iterator[int]:
    return (at for at, (line, _) in enumerate(grid.places) if line == wanted)
