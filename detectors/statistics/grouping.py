"""Which devices are compared: groups by label, or clear classes found in the readings if there are no labels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.device_index import DeviceIndex, codes_of
from laggard.detectors.statistics.estimates import DEVIATION_PER_DISTANCE, FAST_QUANTILES, FAST_SHARES, Floats

_CLASS_RATIO = 1.3  # two models or pipeline stages differ by more, chips of one model by less
_CLASS_GAP_SPREADS = 6.0  # between two classes, of the wider one
_CLASS_DEVICES = 3  # fewer may be slow by chance at once
_PAIR_RANGE = 0.03  # log seconds: two devices are only a class if they are as alike as chips of one model
_CLASS_SHARE = 0.1  # of all devices: a smaller class is a slow minority
_SPREAD_FLOOR = 0.003  # log seconds: devices that look more alike have been so by chance
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


def joint_classes(of_probes: Sequence[Floats], index: DeviceIndex) -> NDArray[np.int32]:
    """Return each device's class over the log seconds of all probes."""
    joint = np.zeros(len(index), np.int32)
    for log_seconds in of_probes:
        codes = clear_classes(log_seconds, index)
        if codes.any():
            pairs = joint * (codes.max() + 1) + codes
            used = np.bincount(pairs) > 0
            joint = (np.cumsum(used, dtype=np.int32) - 1)[pairs]
    return joint


def clear_classes(log_seconds: Floats, index: DeviceIndex, *, pairs_too: bool = False) -> NDArray[np.int32]:
    """Return the class of each device of a group; the fastest class is 0."""
    # Two GPU models, or pipeline stages, form two tight clusters far apart, each with several devices on several hosts.
    # A split needs a gap of six spreads, centers 30 % apart, and on either side three devices, a tenth of all devices
    # and two hosts; and it must follow the hosts, or the GPU names within them. One slow device, one slow node, or a
    # minority that is only 20 % slower or scattered over the nodes is not a class, so it can still be accused.
    ordered = np.sort(log_seconds)  # NaN sorts last
    missing = np.isnan(log_seconds)
    fastest_of_class = _splits(
        ordered[: len(ordered) - np.count_nonzero(missing)], log_seconds, index, 2 if pairs_too else _CLASS_DEVICES
    )
    if not fastest_of_class:
        return np.zeros(len(log_seconds), np.int32)
    codes = np.searchsorted(np.array(fastest_of_class, log_seconds.dtype), log_seconds, side="right")
    return np.where(missing, 0, codes).astype(np.int32)


def slow_minorities(of_probes: Sequence[Floats], grouping: Grouping) -> dict[int, float]:
    """Return the slowdown of each device in a class that is smaller, and clearly slower, than the largest one."""
    # Readings alone cannot distinguish another model from a minority that is slow because of a fault.
    largest = int(np.argmax(grouping.sizes))
    centers = [grouping.low_median(log_seconds) for log_seconds in of_probes]
    behind = np.fmax.reduce([center - center[largest] for center in centers])
    slow = (grouping.sizes < grouping.sizes[largest]) & (behind >= np.log(_CLASS_RATIO))
    return {int(row): float(np.exp(behind[grouping.codes[row]])) for row in np.flatnonzero(slow[grouping.codes])}


def _splits(ordered: Floats, log_seconds: Floats, index: DeviceIndex, fewest: int) -> list[np.float32]:
    """Return the fastest reading of each class except the first, among the readings in ``ordered``."""
    cut = _widest_gap(ordered, fewest)
    if cut is None:
        return []
    fast = (log_seconds >= ordered[0]) & (log_seconds < ordered[cut])
    slow = (log_seconds >= ordered[cut]) & (log_seconds <= ordered[-1])
    if not (_is_pair(fast, slow, index) or _follows_hosts_or_gpus(fast, slow, index)):
        return []
    sides = [_splits(part, log_seconds, index, fewest) for part in (ordered[:cut], ordered[cut:])]
    return [*sides[0], ordered[cut], *sides[1]]


def _widest_gap(ordered: Floats, fewest: int) -> int | None:
    """Return where the slower of two tight, distant clusters begins; ``None`` if there are no two."""
    fewest = max(fewest, int(np.ceil(_CLASS_SHARE * len(ordered))))
    if len(ordered) < 2 * fewest:
        return None
    gaps = np.diff(ordered[fewest - 1 : len(ordered) - fewest + 1])
    cut = int(np.argmax(gaps)) + fewest
    sides = (ordered[:cut], ordered[cut:])
    far = _middle(sides[1]) - _middle(sides[0]) >= np.log(_CLASS_RATIO)
    if any(len(side) < _CLASS_DEVICES and np.ptp(side) > _PAIR_RANGE for side in sides):
        return None
    return cut if far and gaps.max() >= _CLASS_GAP_SPREADS * max(map(_spread, sides)) else None


def _middle(ordered: Floats) -> float:
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _spread(ordered: Floats) -> float:
    distance = float(np.median(np.abs(ordered - np.float32(_middle(ordered)))))
    return max(_SPREAD_FLOOR, float(DEVIATION_PER_DISTANCE) * distance)


def _is_pair(fast: NDArray[np.bool_], slow: NDArray[np.bool_], index: DeviceIndex) -> bool:
    """Return whether two devices are slow that are no whole node: two faults that slow down alike are rare."""
    hosts = index.hosts[slow]
    return len(hosts) < _CLASS_DEVICES and bool(hosts[0] != hosts[1] or (index.hosts[fast] == hosts[0]).any())


def _follows_hosts_or_gpus(fast: NDArray[np.bool_], slow: NDArray[np.bool_], index: DeviceIndex) -> bool:
    """Return whether both sides have several hosts, and hardly any host, or GPU name, has devices on both sides."""
    hosts = [np.unique(index.hosts[side]) for side in (fast, slow)]
    if min(map(len, hosts)) < 2:
        return False
    return _hardly_shared(*hosts) or _hardly_shared(*(np.unique(index.gpus[side]) for side in (fast, slow)))


def _hardly_shared(fast: NDArray[np.int32], slow: NDArray[np.int32]) -> bool:
    return len(np.intersect1d(fast, slow)) <= _CLASS_SHARE * len(np.union1d(fast, slow))
