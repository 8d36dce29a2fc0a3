"""The devices and their rows in arrays, and which of them are compared: those with the same label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.errors import DeviceNameError
from laggard.detectors.statistics.readings import Floats

Labels = Mapping[DeviceId, Hashable]  # only devices with the same label are compared
# The spread is the median minus the 10 % or the 20 % quantile, whichever gives less, divided by that of the normal
# distribution. Unlike a two-sided scale, it is not widened by a slow minority (masking), nor by a single fast device.
_FAST_SHARES = (10, 5)  # the fastest device in so many
_FAST_QUANTILES = np.array([[1.2816], [0.8416]], np.float32)  # of the standard normal distribution
_SAMPLED = 2048  # the error of a median of so many is below a thirtieth of the spread


def codes_of(labels: Sequence[Hashable]) -> NDArray[np.int32]:
    """Return a number for each label: 0, 1, ... in order of appearance."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.fromiter(map(numbers.__getitem__, labels), np.int32, len(labels))


def check_names(devices: Collection[Any]) -> None:
    """Check that each device is named by its host and its GPU."""
    for device in devices:
        if not (isinstance(device, tuple) and len(device) == 2 and all(isinstance(part, str) for part in device)):
            raise DeviceNameError(device)


def present_places(
    saved: Iterable[DeviceId], names: Sequence[str], identity: Mapping[DeviceId, str]
) -> list[DeviceId | None]:
    """Return where each saved device is now: where its name is, else where it was; ``None`` if another is there now."""
    device_of = {name: device for device, name in identity.items()}
    moved_in = {device_of[name] for name in names if name in device_of}
    return [
        device_of.get(name, None if device in moved_in or (name and device in identity) else device)
        for device, name in zip(saved, names, strict=True)
    ]


class Grouping:
    """The groups of a set of devices."""

    def __init__(self, codes: NDArray[np.int32]) -> None:
        self.codes = codes  # each device's group, `(n_devices,)`
        self.sizes = np.bincount(codes, minlength=1)  # number of devices of each group, `(n_groups,)`
        self.n_groups = len(self.sizes)
        # The devices whose readings stand for their group's: all of a small group, and some of a large one, drawn by
        # chance, so that they are not all in the same place of their nodes
        rows = np.random.default_rng(len(codes)).permutation(len(codes))
        rows = rows[np.argsort(codes[rows], kind="stable")]
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        self._sample = rows[rank < _SAMPLED]
        self._sample_codes = codes[self._sample]
        sizes = np.minimum(self.sizes, _SAMPLED)
        self._starts = np.cumsum(sizes) - sizes

    def per_device(self, by_group: NDArray[Any]) -> NDArray[Any]:
        """Give each device its group's value: ``(..., n_groups)`` to ``(..., n_devices)``."""
        return np.take(by_group, self.codes, axis=-1)

    def size_at(self, row: int) -> int:
        """Return the size of a device's group."""
        return int(self.sizes[self.codes[row]])

    def count(self, flags: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Count the true flags of each group."""
        return np.bincount(self.codes[flags], minlength=self.n_groups)

    def since(self, before: NDArray[np.int32]) -> NDArray[np.intp] | None:
        """Return which group each one was, -1 if it is new; ``None`` if groups were split or joined.

        ``before``: the former groups of the first devices; the others are new.
        """
        pairs = np.unique(np.stack([self.codes[: len(before)], before]), axis=1)
        if any(len(np.unique(side)) < pairs.shape[1] for side in pairs):
            return None
        groups = np.full(self.n_groups, -1)
        groups[pairs[0]] = pairs[1]
        return groups

    def at_ranks(self, values: Floats, *ranks: Callable[[NDArray[np.intp]], NDArray[np.intp]]) -> Floats:
        """Return each group's values at places in ascending order, ``(n_ranks, n_groups)``, ``NaN`` if it has none.

        Each rank is a function of the number of known values.
        """
        ordered = values[self._sample]
        known = np.bincount(self._sample_codes[~np.isnan(ordered)], minlength=self.n_groups)
        ordered = np.sort(ordered) if self.n_groups == 1 else ordered[np.lexsort((ordered, self._sample_codes))]
        places = [np.minimum(self._starts + np.maximum(rank(known), 0), len(ordered) - 1) for rank in ranks]
        return np.where(known > 0, ordered[np.stack(places)], np.float32(np.nan))

    def low_median(self, values: Floats) -> Floats:
        """Return the smaller of the two middle values of each group: with half of it slow still a good one."""
        return np.asarray(self.at_ranks(values, lambda known: (known - 1) // 2)[0])

    def high_median(self, values: Floats) -> Floats:
        """Return the greater of the two middle values of each group."""
        return np.asarray(self.at_ranks(values, lambda known: known // 2)[0])

    def center_and_spread(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the low median of each group, and the standard deviation estimated from its fast half."""
        center, *fast = self.at_ranks(
            values, *(lambda known, share=s: (known - 1) // share for s in (2, *_FAST_SHARES))
        )
        return center, ((center - np.stack(fast)) / _FAST_QUANTILES).min(axis=0)


class Devices(Grouping):
    """The devices that are expected; those with the same label are a group, and without labels all are.

    What most rounds do not need is computed on first use.
    """

    def __init__(self, names: Iterable[DeviceId] = (), labels: Labels | None = None) -> None:
        self.names = tuple(names)  # each device once, in the order of the rows
        super().__init__(codes_of([labels.get(name) if labels else None for name in self.names]))

    @cached_property
    def hosts(self) -> NDArray[np.int32]:
        """Number of each device's host, ``(n_devices,)``."""
        return codes_of([host for host, _ in self.names])

    @cached_property
    def number_on(self) -> Counter[str]:
        """The number of devices of each host."""
        return Counter(host for host, _ in self.names)

    @cached_property
    def row_of(self) -> dict[DeviceId, int]:
        """The row of each device; may be read from any thread."""
        return {name: row for row, name in enumerate(self.names)}

    def rows_of(self, names: tuple[DeviceId, ...]) -> NDArray[np.intp]:
        """Return the rows of devices."""
        return np.fromiter(map(self.row_of.__getitem__, names), np.intp, len(names))
