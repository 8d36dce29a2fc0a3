"""Clear classes of devices, found in the readings where nobody gave a label: GPU models, pipeline stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.grouping import Grouping
from detectors.statistics import Floats, center_and_spread

__all__ = ["clear_classes", "joint_classes", "slow_minorities"]

_CLASS_RATIO = 1.3  # two models or stages differ by more; chips of one model by less
_CLASS_GAP_SPREADS = 6.0
_CLASS_DEVICES = 3
_CLASS_SHARE = 0.1
_SPREAD_FLOOR = 0.003


def joint_classes(log_seconds: Floats, hosts: NDArray[np.int32], gpus: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the joint class of each device over several probes, ``(n_probes, n_devices)`` to ``(n_devices,)``."""
    found = [clear_classes(row, hosts, gpus) for row in log_seconds]
    joint = np.zeros(len(hosts), np.int32)
    for codes in found:
        if codes.any():
            joint = np.unique(joint * (codes.max() + 1) + codes, return_inverse=True)[1].astype(np.int32)
    return joint


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
    if not _may_split(np.sort(log_seconds[valid])):
        return codes
    order = valid[np.argsort(log_seconds[valid])]
    for number, members in enumerate(_split(log_seconds, hosts, gpus, order)):
        codes[members] = number
    return codes


def slow_minorities(log_seconds: Floats, grouping: Grouping) -> dict[int, float]:
    """Return the devices of each class that is smaller, and clearly slower, than the biggest one, with its slowdown.

    Readings alone cannot tell another model from a minority that is slow because something is broken.
    """
    sizes = np.bincount(grouping.codes)
    biggest = int(np.argmax(sizes))
    center, _ = center_and_spread(log_seconds, grouping.groups)
    behind = np.fmax.reduce(center - center[:, [biggest]], axis=0)
    slow = (sizes < sizes[biggest]) & (behind >= np.log(_CLASS_RATIO))
    return {int(row): float(np.exp(behind[grouping.codes[row]])) for row in np.flatnonzero(slow[grouping.codes])}


def _fewest(devices: int) -> int:
    return max(_CLASS_DEVICES, int(np.ceil(_CLASS_SHARE * devices)))


def _may_split(ordered: Floats) -> bool:
    """Return whether the middles of the two sides can be far enough apart, wherever the cut is: seldom."""
    fewest = _fewest(len(ordered))
    if len(ordered) < 2 * fewest:
        return False
    return bool(ordered[-1 - (fewest - 1) // 2] - ordered[(fewest - 1) // 2] >= np.log(_CLASS_RATIO))


def _split(
    log_seconds: Floats, hosts: NDArray[np.int32], gpus: NDArray[np.int32], order: NDArray[np.intp]
) -> list[NDArray[np.intp]]:
    ordered = log_seconds[order]
    if not _may_split(ordered):
        return [order]
    fewest = _fewest(len(order))
    gaps = np.diff(ordered)
    cut = int(np.argmax(gaps[fewest - 1 : len(order) - fewest])) + fewest
    fast, slow = order[:cut], order[cut:]
    far = np.median(ordered[cut:]) - np.median(ordered[:cut]) >= np.log(_CLASS_RATIO)
    spread = max(_spread(ordered[:cut]), _spread(ordered[cut:]))
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
