"""Runs of exceedances that a group's devices share: what a few of them do alone is a fault, not the group's noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counted", "SharedRuns"]

_SHARE, _MOST = 8, 4  # an eighth of a group, at least one device and at most four, cannot teach it anything

Codes = NDArray[np.intp]
Lengths = NDArray[np.integer]


class Counted(NamedTuple):
    """Runs that count from now on: the group of each that is new, and group and length of each that others share."""

    new: Codes
    shared: Codes
    lengths: Lengths


class SharedRuns:
    """Holds back how long each run was until enough other devices of its group have had one since.

    Until then, further runs of the same device do not count at all.  So a few slow devices teach their group next to
    nothing, however often they are slow; and of runs that all its devices have alike, a known share counts.

    Attributes
    ----------
    few
        How many devices of each group cannot teach it anything, ``(n_groups,)``.
    runs_for_each
        How many runs each one that counts stands for, ``(n_groups,)``.
    """

    def __init__(self, sizes: NDArray[np.integer]) -> None:
        self.few = np.clip(sizes // _SHARE, 1, _MOST)
        self.runs_for_each = sizes / np.maximum(sizes - self.few, 1)
        self._held: dict[tuple[int, int, int], tuple[NDArray[np.intp], Lengths, NDArray[np.intp]]] = {}

    def add(self, test: int, level: int, codes: Codes, places: NDArray[np.intp], lengths: Lengths) -> Counted:
        """Take runs that have just ended; return those that count from now on.

        Parameters
        ----------
        codes
            Each run's probe and group.
        places
            Each run's probe and device.
        """
        order = np.argsort(codes, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(codes) else []
        groups = codes[[part[0] for part in parts]]
        found = [
            self._of_group((test, level, code), places[part], lengths[part])
            for code, part in zip(groups.tolist(), parts, strict=True)
        ]
        return Counted(
            np.repeat(groups, [n_new for n_new, _ in found]),
            np.repeat(groups, [len(shared) for _, shared in found]),
            np.concatenate([lengths[:0], *(shared for _, shared in found)]),
        )

    def _of_group(self, key: tuple[int, int, int], places: NDArray[np.intp], lengths: Lengths) -> tuple[int, Lengths]:
        """Return how many of a group's runs are new, and the lengths of those that are shared now."""
        held_places, held_lengths, held_others = self._held.get(key, (places[:0], lengths[:0], places[:0]))
        is_new = ~np.isin(places, held_places)
        n_new = int(np.count_nonzero(is_new))
        places = np.concatenate([held_places, places[is_new]])
        lengths = np.concatenate([held_lengths, lengths[is_new]])
        others = np.concatenate([held_others + n_new, np.full(n_new, n_new - 1)])
        shared = others >= self.few[key[2] % len(self.few)]
        self._held[key] = places[~shared], lengths[~shared], others[~shared]
        return n_new, lengths[shared]
