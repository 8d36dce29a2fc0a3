"""Who is compared with whom: the groups of a set of devices."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Group

__all__ = ["Grouping", "codes_of"]


def codes_of(labels: Sequence[Hashable]) -> NDArray[np.int32]:
    """Return a number for each label: 0, 1, ... in order of appearance."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.fromiter(map(numbers.__getitem__, labels), np.int32, len(labels))


class Grouping:
    """The groups of a set of devices.

    Attributes
    ----------
    codes
        Each device's group, ``(n_devices,)``.
    groups
        The devices of each group; neighbours are a slice, which costs no copy.
    sizes
        How many devices are in each group, ``(n_groups,)``.
    """

    def __init__(self, codes: NDArray[np.int32]) -> None:
        self.codes = codes
        self.sizes = np.bincount(codes, minlength=1)
        count = len(self.sizes)
        self.groups: list[Group] = [slice(None)]
        if count > 1:
            order = np.argsort(codes, kind="stable")
            members = np.split(order, np.searchsorted(codes[order], np.arange(1, count)))
            self.groups = [_slice_of(rows) if _are_neighbours(rows) else rows for rows in members]

    def __len__(self) -> int:
        return len(self.groups)

    def spread_out(self, by_group: NDArray[Any]) -> NDArray[Any]:
        """Give each device its group's value, ``(..., n_groups)`` to ``(..., n_devices)`` or what broadcasts to it."""
        return by_group if len(self) == 1 else np.take(by_group, self.codes, axis=-1)

    def size_at(self, row: int) -> int:
        """Return how many devices are in a device's group."""
        return int(self.sizes[self.codes[row]])


def _are_neighbours(rows: NDArray[np.intp]) -> bool:
    return bool(len(rows) and rows[-1] - rows[0] == len(rows) - 1)


def _slice_of(rows: NDArray[np.intp]) -> slice:
    return slice(int(rows[0]), int(rows[-1]) + 1)
