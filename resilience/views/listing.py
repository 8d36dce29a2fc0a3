"""Tables as columns of text: which of them fit, with a bar beside each percentage where there is room. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len

LEAST_BAR, MOST_BAR = 3, 16  # columns of a bar
BEFORE_BARS = 3  # columns of a higher rank are left out rather than the bars of the others
_STEPS = "▁▂▃▄▅▆▇█"


class Cell(NamedTuple):
    """A text, rich's style for it, and the name of the node or device that it is about, if it can be selected."""

    text: str
    style: str = ""
    name: str = ""


@dataclass(frozen=True)
class Column:
    """One column."""

    heading: str
    cells: Sequence[Cell] = ()
    rank: int = 0  # where there is no room, the column of the highest rank is left out first; 0: it stays
    right: bool = True  # whether it is aligned on the right
    shares: Sequence[float | None] = ()  # what the bars show, from 0 to 1
    most: int = 80  # columns of the terminal

    @cached_property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return min(self.most, max(map(cell_len, (self.heading, *(cell.text for cell in self.cells)))))

    def with_bars(self, length: int) -> Column:
        """Return the column with a bar of this length before each text."""
        bars = (bar(share, length) for share in self.shares)
        cells = [
            cell._replace(text=f"{drawn} {cell.text:>{self.width}}")
            for drawn, cell in zip(bars, self.cells, strict=True)
        ]
        return replace(self, cells=cells, shares=())


def fitted(columns: Sequence[Column], width: int, most_bar: int = 0) -> list[Column]:
    """Return the columns that say something and fit a width, with bars of at most ``most_bar`` before their shares."""
    kept = [each for each in columns if not each.rank or any(cell.text for cell in each.cells)]
    while True:
        spare, shares = width - sum(each.width + 1 for each in kept), sum(bool(each.shares) for each in kept)
        last = max(kept, key=lambda each: each.rank, default=Column(""))
        wanted = shares * (LEAST_BAR + 1) if most_bar and last.rank > BEFORE_BARS else 0
        if spare >= wanted or not last.rank:
            break
        kept = [each for each in kept if each is not last]
    length = min(most_bar, spare // shares - 1) if shares else 0
    return [each.with_bars(length) if each.shares and length >= LEAST_BAR else each for each in kept]


def bar(share: float | None, length: int) -> str:
    """Return a bar that is full at a share of 1; blank if it is not known."""
    halves = round(2 * length * max(0.0, min(1.0, share or 0.0)))
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(length)


def curve(values: Sequence[float], length: int, low: float, high: float) -> str:
    """Return values, oldest first, as steps between two limits; each step is the mean of its part of them."""
    length = min(length, len(values))
    ends = [len(values) * number // length for number in range(length + 1)] if length else []
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(ends)]
    top = len(_STEPS) - 1
    return "".join(_STEPS[round(top * max(0.0, min(1.0, (mean - low) / ((high - low) or 1.0))))] for mean in means)
