"""Runs of exceedances that a group's devices share: what one of them does alone is a fault, not the group's noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.integer]
Lengths = NDArray[np.integer]


class Counted(NamedTuple):
    """Runs that count from now on: the group of each that is new, and group and length of each that others share."""

    new: Codes
    shared: Codes
    lengths: Lengths


class SharedRuns:
    """Holds back how long a run was until another device of its group has had one since.

    Until then, further runs of the same device do not count at all.  So one slow device teaches its group next to
    nothing, however often it is slow; and of runs that all devices have alike, a known share counts.
    """

    def __init__(self, sizes: NDArray[np.integer]) -> None:
        # How many runs each one that counts stands for, `(n_groups,)`
        self.runs_for_each = sizes / np.maximum(sizes - 1, 1)
        self._held: dict[tuple[int, int, int], tuple[int, Lengths]] = {}  # a device's row, and its run's length

    def add(self, test: int, level: int, codes: Codes, rows: NDArray[np.intp], lengths: Lengths) -> Counted:
        """Take runs that have just ended; return those that count from now on."""
        order = np.argsort(codes, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(codes) else []
        groups = codes[[part[0] for part in parts]]
        found = [
            self._of_group((test, level, code), rows[part], lengths[part])
            for code, part in zip(groups.tolist(), parts, strict=True)
        ]
        return Counted(
            np.repeat(groups, [n_new for n_new, _ in found]),
            np.repeat(groups, [len(shared) for _, shared in found]),
            np.concatenate([lengths[:0], *(shared for _, shared in found)]),
        )

    def _of_group(self, key: tuple[int, int, int], rows: NDArray[np.intp], lengths: Lengths) -> tuple[int, Lengths]:
        """Return how many of a group's runs are new, and the lengths of those that are shared now."""
        held_row, held_length = self._held.get(key, (-1, lengths[:0]))
        is_new = rows != held_row
        n_new = int(np.count_nonzero(is_new))
        if not n_new:
            return 0, lengths[:0]
        if n_new == 1:
            self._held[key] = int(rows[is_new][0]), lengths[is_new]
            return 1, held_length
        self._held.pop(key, None)
        return n_new, np.concatenate([held_length, lengths[is_new]])
