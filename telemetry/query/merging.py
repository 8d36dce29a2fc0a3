"""Merging the series of a group at each time, all at once or in parts that are merged later.

A part (:class:`Partial`) holds sums over its series for each time. The parts of several nodes merge to exactly what one
pass over all series gives, so the nodes need not send their series.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.series.timeseries import Floats
from laggard.telemetry.errors import QueryTooLargeError
from laggard.telemetry.query.aggregators import Aggregator, Gaps

MAX_CELLS = 20_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """A series on a grid of times: the sorted indices at which it has points, and their values."""

    at: NDArray[np.intp]
    values: Floats

    def contribution(self, gaps: Gaps) -> tuple[NDArray[np.intp], Floats]:
        """Return indices and values, with the gaps between the first and last point filled."""
        if gaps is Gaps.SKIP or len(self.at) == 0 or self.at[-1] - self.at[0] + 1 == len(self.at):
            return self.at, self.values
        every = np.arange(self.at[0], self.at[-1] + 1)
        return every, self.values[np.searchsorted(self.at, every, side="right") - 1]


@dataclass(slots=True)
class Partial:
    """Sums over some series for each of ``n`` times."""

    points: Floats  # number of series that have a point; the contributions of others fill gaps
    count: Floats  # count, sum, minimum and maximum of the contributions
    total: Floats
    low: Floats
    high: Floats
    spread: Floats  # sum of the squared distances from their mean (Chan, Golub and LeVeque, 1983)

    @classmethod
    def empty(cls, n: int) -> Partial:
        """Return a part without series."""
        zeros = [np.zeros(n) for _ in range(4)]
        return cls(zeros[0], zeros[1], zeros[2], np.full(n, np.inf), np.full(n, -np.inf), zeros[3])

    def add(self, line: Line, grid: Floats, gaps: Gaps) -> None:
        """Add one series; ``grid`` holds the times, for interpolation."""
        at, values = line.contribution(gaps)
        if gaps is Gaps.INTERPOLATE and len(at) != len(line.at):
            values = np.interp(grid[at], grid[line.at], line.values)
        self.points[line.at] += 1
        count = self.count[at]
        distance = values - self.total[at] / np.maximum(count, 1)
        self.spread[at] += distance**2 * count / (count + 1)
        self.count[at] += 1
        self.total[at] += values
        self.low[at] = np.minimum(self.low[at], values)
        self.high[at] = np.maximum(self.high[at], values)

    def merge(self, other: Partial) -> None:
        """Add another part, over other series at the same times."""
        both = self.count + other.count
        distance = other.total / np.maximum(other.count, 1) - self.total / np.maximum(self.count, 1)
        self.spread += other.spread + distance**2 * self.count * other.count / np.maximum(both, 1)
        self.points += other.points
        self.count = both
        self.total = self.total + other.total
        self.low = np.minimum(self.low, other.low)
        self.high = np.maximum(self.high, other.high)

    def finish(self, name: str) -> Floats:
        """Return the values of a mergeable aggregator; NaN if no series contributes."""
        n = np.where(self.count > 0, self.count, np.nan)
        match name:
            case "avg":
                return self.total / n
            case "min" | "mimmin":
                return np.where(self.count > 0, self.low, np.nan)
            case "max" | "mimmax":
                return np.where(self.count > 0, self.high, np.nan)
            case "dev":
                return np.sqrt(self.spread / n)
            case "count":
                return np.where(self.count > 0, self.count, np.nan)
            case _:
                return np.where(self.count > 0, self.total, np.nan)


def merge_lines(
    how: Aggregator, grid: Floats, lines: Sequence[Line], max_cells: int = MAX_CELLS
) -> tuple[NDArray[np.bool_], Floats]:
    """Merge the series of a group."""
    if how.mergeable:
        part = partial_of(how, grid, lines)
        return part.points > 0, part.finish(how.name)
    if len(lines) * len(grid) > max_cells:
        raise QueryTooLargeError(
            f"{how.name} over {len(lines)} series at {len(grid)} times is too large: filter, or downsample further"
        )
    matrix = np.full((len(lines), len(grid)), np.nan)
    present = np.zeros(len(grid), dtype=bool)
    for row, line in zip(matrix, lines, strict=True):
        at, values = line.contribution(how.gaps)
        if how.gaps is Gaps.INTERPOLATE and len(at) != len(line.at):
            values = np.interp(grid[at], grid[line.at], line.values)
        row[at] = values
        present[line.at] = True
    return present, how.reduce(matrix)


def partial_of(how: Aggregator, grid: Floats, lines: Iterable[Line]) -> Partial:
    """Return the sums over some series."""
    part = Partial.empty(len(grid))
    for line in lines:
        part.add(line, grid, how.gaps)
    return part
