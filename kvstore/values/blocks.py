"""Parts of a global array, and where to read a part from that no rank saved as it is (pure).

A rank that holds a part of an array saves it as a `Block`: its elements, and the `Region` of the whole array that they
are.  After a relaunch with another number of ranks, each rank wants another region; `plan_reads` says which piece of
which saved region fills which piece of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Region:
    """A box of an array: the index at which it begins on each axis, and its length there."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.start) != len(self.shape) or any(number < 0 for number in (*self.start, *self.shape)):
            raise ValueError(
                f"start {self.start} and shape {self.shape} must be as long as each other, and not negative"
            )

    def __str__(self) -> str:
        return f"[{', '.join(f'{first}:{last}' for first, last in zip(self.start, self.stop, strict=True))}]"

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        """Return the region of all elements."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def along(cls, axis: int, shape: Sequence[int], part: int, parts: int) -> Region:
        """Return one of several parts along an axis, as even as possible, the longer ones first.

        Parameters
        ----------
        axis
            The axis; negative ones count from the last.
        shape
            Shape of the whole array.
        part, parts
            Which part, and how many there are: a rank, and the number of ranks.

        Examples
        --------
        >>> [str(Region.along(0, (10, 4), rank, 3)) for rank in range(3)]
        ['[0:4, 0:4]', '[4:7, 0:4]', '[7:10, 0:4]']
        """
        if not 0 <= part < parts:
            raise ValueError(f"part is {part}; it must be at least 0 and below parts, which is {parts}")
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis is {axis}; an array of shape {tuple(shape)} has {len(shape)} axes")
        axis %= len(shape)
        length, longer = divmod(shape[axis], parts)
        start, lengths = [0] * len(shape), list(shape)
        start[axis] = part * length + min(part, longer)
        lengths[axis] = length + (part < longer)
        return cls(tuple(start), tuple(lengths))

    @property
    def stop(self) -> tuple[int, ...]:
        """The index after its last one on each axis."""
        return tuple(first + length for first, length in zip(self.start, self.shape, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def slices(self, within: Region | None = None) -> tuple[slice, ...]:
        """Return the region as an index of the whole array, or of the part of it that another region is."""
        origin = (0,) * len(self.start) if within is None else within.start
        return tuple(
            slice(first - zero, last - zero) for first, last, zero in zip(self.start, self.stop, origin, strict=True)
        )

    def common(self, other: Region) -> Region | None:
        """Return the elements that are in both regions; None if there are none."""
        start = tuple(map(max, self.start, other.start))
        lengths = tuple(last - first for first, last in zip(start, map(min, self.stop, other.stop), strict=True))
        return Region(start, lengths) if all(length > 0 for length in lengths) else None

    def without(self, other: Region) -> list[Region]:
        """Return the elements that are not in the other region, as boxes that do not overlap."""
        common = self.common(other)
        if common is None:
            return [self] if self.size else []
        boxes, start, stop = [], list(self.start), list(self.stop)
        for axis, (first, last) in enumerate(zip(common.start, common.stop, strict=True)):
            for low, high in ((start[axis], first), (last, stop[axis])):
                if low < high:
                    begin, end = [*start[:axis], low, *start[axis + 1 :]], [*stop[:axis], high, *stop[axis + 1 :]]
                    boxes.append(Region(tuple(begin), tuple(e - b for b, e in zip(begin, end, strict=True))))
            start[axis], stop[axis] = first, last
        return boxes


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements to read from one of several saved regions, given by its number."""

    source: int
    region: Region


class Block:
    """A part of a global array, as a value of State.

    Parameters
    ----------
    data
        Its elements: a NumPy array or a PyTorch tensor.
    region
        Which elements of the global array they are.
    shape
        Shape of the global array.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Region.along(0, (1000, 8), part=1, parts=4)
    >>> Block(np.zeros(rows.shape), rows, (1000, 8))
    <Block [250:500, 0:8] of (1000, 8)>
    """

    __slots__ = ("data", "region", "shape")

    def __init__(self, data: Any, region: Region, shape: Sequence[int]) -> None:
        self.data = data
        self.region = region
        self.shape = tuple(shape)
        if tuple(data.shape) != region.shape:
            raise ValueError(f"the data has shape {tuple(data.shape)}, and its region {region} has {region.shape}")
        if len(self.shape) != len(region.shape) or any(map(int.__gt__, region.stop, self.shape)):
            raise ValueError(f"the region {region} is not within an array of shape {self.shape}")

    def __repr__(self) -> str:
        return f"<Block {self.region} of {self.shape}>"


def plan_reads(wanted: Region, saved: Sequence[Region]) -> tuple[list[Piece], list[Region]]:
    """Return what to read from which saved region, and which wanted elements no region holds."""
    # Each wanted element is in one piece or in one box of those missing. Elements that several regions hold are read
    # from the first of them, so put the nearest copies first.
    pieces: list[Piece] = []
    rest = [wanted] if wanted.size else []
    for source, region in enumerate(saved):
        pieces += [Piece(source, common) for box in rest if (common := box.common(region)) is not None]
        rest = [left for box in rest for left in box.without(region)]
        if not rest:
            break
    return pieces, rest
