"""Who is compared with whom: groups by label, and clear classes found in the readings where nobody gave a label."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Floats, Group

__all__ = ["Grouping", "clear_classes", "codes_of", "joint_classes"]

_CLASS_RATIO = 1.3  # two models or stages differ by more; chips of one model by less
_CLASS_GAP_SPREADS = 6.0
_CLASS_DEVICES = 3
_CLASS_SHARE = 0.1
_SPREAD_FLOOR = 0.003


def codes_of(labels: Sequence[Hashable]) -> NDArray[np.int32]:
    """Return a number for each label: 0, 1, ... in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int32)


class Grouping:
    """The groups of a set of devices.

    Attributes
    ----------
    codes
        Each device's group, ``(n_devices,)``.
    groups
        The devices of each group; one group alone is a slice, which costs no copy.
    """

    def __init__(self, codes: NDArray[np.int32]) -> None:
        self.codes = codes
        count = int(codes.max()) + 1 if len(codes) else 1
        order = np.argsort(codes, kind="stable")
        self.groups: list[Group] = list(np.split(order, np.searchsorted(codes[order], np.arange(1, count))))
        if count == 1:
            self.groups = [slice(None)]

    def __len__(self) -> int:
        return len(self.groups)

    def spread_out(self, by_group: NDArray[Any]) -> NDArray[Any]:
        """Give each device its group's value, ``(..., n_groups)`` to ``(..., n_devices)`` or what broadcasts to it."""
        return by_group if len(self) == 1 else by_group[..., self.codes]

    def size_at(self, row: int) -> int:
        """Return how many devices are in a device's group."""
        return int(np.count_nonzero(self.codes == self.codes[row]))


def joint_classes(log_seconds: Floats, hosts: NDArray[np.int32], gpus: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the joint class of each device over several probes, ``(n_probes, n_devices)`` to ``(n_devices,)``."""
    found = np.stack([clear_classes(row, hosts, gpus) for row in log_seconds])
    return codes_of(list(map(tuple, found.T.tolist()))) if found.any() else found[0]


def clear_classes(log_seconds: Floats, hosts: NDArray[np.int32], gpus: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the clear class of each device of a group, fastest class 0.

    Two GPU models, or pipeline stages, are two tight clusters far apart, each with several devices on several hosts.
    A split needs a gap of six spreads, centers 30 % apart, and on either side three devices, a tenth of all and two
    hosts; and it must follow the hosts, or the places within them.  One slow device, one slow node, a minority that is
    only 20 % slower or scattered over the nodes is no class and stays accused.

    Parameters
    ----------
    log_seconds
        One probe's reading of each device, shape ``(n_devices,)``.
    hosts, gpus
        Each device's host, and place on it, as numbers, shape ``(n_devices,)``.
    """
    codes = np.zeros(len(log_seconds), np.int32)
    valid = np.flatnonzero(~np.isnan(log_seconds))
    order = valid[np.argsort(log_seconds[valid], kind="stable")]
    for number, members in enumerate(_split(log_seconds, hosts, gpus, order)):
        codes[members] = number
    return codes


def _split(
    log_seconds: Floats, hosts: NDArray[np.int32], gpus: NDArray[np.int32], order: NDArray[np.intp]
) -> list[NDArray[np.intp]]:
    fewest = max(_CLASS_DEVICES, int(np.ceil(_CLASS_SHARE * len(order))))
    if len(order) < 2 * fewest:
        return [order]
    gaps = np.diff(log_seconds[order])
    cut = int(np.argmax(gaps[fewest - 1 : len(order) - fewest])) + fewest
    fast, slow = order[:cut], order[cut:]
    far = np.median(log_seconds[slow]) - np.median(log_seconds[fast]) >= np.log(_CLASS_RATIO)
    spread = max(_spread(log_seconds[fast]), _spread(log_seconds[slow]))
    if not (far and gaps[cut - 1] >= _CLASS_GAP_SPREADS * spread):
        return [order]
    several_hosts = min(len(np.unique(hosts[fast])), len(np.unique(hosts[slow]))) > 1
    if not (several_hosts and any(_follows(places[fast], places[slow]) for places in (hosts, gpus))):
        return [order]
    return _split(log_seconds, hosts, gpus, fast) + _split(log_seconds, hosts, gpus, slow)


def _follows(fast: NDArray[np.int32], slow: NDArray[np.int32]) -> bool:
    """Return whether hardly any place has devices on both sides."""
    shared = len(np.intersect1d(fast, slow))
    return shared <= _CLASS_SHARE * len(np.union1d(fast, slow))


def _spread(values: Floats) -> float:
    return max(_SPREAD_FLOOR, 1.4826 * float(np.median(np.abs(values - np.median(values)))))
