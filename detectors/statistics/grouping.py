"""Which devices are compared: those with the same label."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.device_index import codes_of
from laggard.detectors.statistics.estimates import FAST_QUANTILES, FAST_SHARES, Floats

_SAMPLED = 2048  # the error of a median of so many is below a thirtieth of the spread


class Grouping:
    """The groups of a set of devices."""

    def __init__(self, codes: NDArray[np.int32]) -> None:
        self.codes = codes  # each device's group, `(n_devices,)`
        self.sizes = np.bincount(codes, minlength=1)  # number of devices of each group, `(n_groups,)`
        # The devices whose readings stand for their group's: all of a small group, and some of a large one, drawn by
        # chance, so that they are not all in the same place of their nodes
        order = np.random.default_rng(len(codes)).permutation(len(codes)) if self.sizes.max() > _SAMPLED else None
        rows = np.arange(len(codes)) if order is None else order
        rows = rows[np.argsort(codes[rows], kind="stable")]
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        self._sample = rows[rank < _SAMPLED]
        self._sample_codes = codes[self._sample]
        sizes = np.minimum(self.sizes, _SAMPLED)
        self._starts = np.cumsum(sizes) - sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def per_device(self, by_group: NDArray[Any]) -> NDArray[Any]:
        """Give each device its group's value: ``(..., n_groups)`` to ``(..., n_devices)``."""
        return np.take(by_group, self.codes, axis=-1)

    def size_at(self, row: int) -> int:
        """Return the size of a device's group."""
        return int(self.sizes[self.codes[row]])

    def count(self, flags: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Count the true flags of each group."""
        return np.bincount(self.codes[flags], minlength=len(self))

    def at_ranks(self, values: Floats, *ranks: Callable[[NDArray[np.intp]], NDArray[np.intp]]) -> Floats:
        """Return each group's values at places in ascending order, ``(n_ranks, n_groups)``, ``NaN`` if it has none.

        Each rank is a function of the number of known values.
        """
        ordered = values[self._sample]
        known = np.bincount(self._sample_codes[~np.isnan(ordered)], minlength=len(self))
        ordered = np.sort(ordered) if len(self) == 1 else ordered[np.lexsort((ordered, self._sample_codes))]
        if not len(ordered):
            return np.full((len(ranks), len(self)), np.nan, np.float32)
        places = [np.minimum(self._starts + np.maximum(rank(known), 0), len(ordered) - 1) for rank in ranks]
        return np.where(known > 0, ordered[np.stack(places)], np.float32(np.nan))

    def low_median(self, values: Floats) -> Floats:
        """Return the smaller of the two middle values of each group: with half of it slow still a good one."""
        return np.asarray(self.at_ranks(values, _low_middle)[0])

    def high_median(self, values: Floats) -> Floats:
        """Return the greater of the two middle values of each group."""
        return np.asarray(self.at_ranks(values, lambda known: known // 2)[0])

    def center_and_spread(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the low median of each group, and the standard deviation estimated from its fast half."""
        # The spread is the median minus the 10 % or the 20 % quantile, whichever gives less, divided by that of the
        # normal distribution. Unlike a two-sided scale, it is not widened by a slow minority (masking), nor by a single
        # fast device.
        tenth, fifth = FAST_SHARES
        center, *fast = self.at_ranks(
            values, _low_middle, lambda known: (known - 1) // tenth, lambda known: (known - 1) // fifth
        )
        return center, ((center - np.stack(fast)) / FAST_QUANTILES).min(axis=0)


def _low_middle(known: NDArray[np.intp]) -> NDArray[np.intp]:
    return (known - 1) // 2


def labelled(devices: Sequence[DeviceId], labels: Mapping[DeviceId, Hashable] | None) -> Grouping:
    """Return the groups of devices with the same label; without labels all are one."""
    return Grouping(codes_of([labels.get(device) if labels else None for device in devices]))
