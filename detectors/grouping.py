"""Who is compared with whom: groups by label, and clear classes found in the readings where nobody gave a label."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Floats

__all__ = ["clear_classes", "codes_of", "joint_classes", "rows_of"]

_CLASS_RATIO = 1.25  # two models or stages differ by more; chips of one model by less
_CLASS_GAP_SPREADS = 6.0
_CLASS_DEVICES = 3
_CLASS_SHARE = 0.1
_SPREAD_FLOOR = 0.003


def codes_of(labels: Sequence[Hashable]) -> NDArray[np.int32]:
    """Return a number for each label: 0, 1, ... in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int32)


def rows_of(codes: NDArray[np.int32]) -> list[NDArray[np.intp] | slice]:
    """Return the rows of each group; one group alone is a slice, which costs no copy."""
    count = int(codes.max()) + 1 if len(codes) else 0
    if count <= 1:
        return [slice(None)] * count
    order = np.argsort(codes, kind="stable")
    return list(np.split(order, np.searchsorted(codes[order], np.arange(1, count))))


def clear_classes(log_seconds: Floats, hosts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the clear class of each device of a group, fastest class 0.

    Two GPU models, or pipeline stages, are two tight clusters far apart, each with several devices on several hosts.
    A split needs a gap of six spreads, centers 25 % apart, and on either side three devices, a tenth of all and two
    hosts: one slow device, one slow node or a slow minority that is only 20 % slower is no class and stays accused.

    Parameters
    ----------
    log_seconds
        One probe's reading of each device, shape ``(n_devices,)``.
    hosts
        Each device's host as a number, shape ``(n_devices,)``.
    """
    codes = np.zeros(len(log_seconds), np.int32)
    valid = np.flatnonzero(~np.isnan(log_seconds))
    order = valid[np.argsort(log_seconds[valid], kind="stable")]
    for number, members in enumerate(_split(log_seconds, hosts, order)):
        codes[members] = number
    return codes


def joint_classes(log_seconds: Floats, hosts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the joint class of each device over several probes, ``(n_devices, n_probes)`` to ``(n_devices,)``."""
    found = np.stack([clear_classes(column, hosts) for column in log_seconds.T], axis=1)
    return codes_of(list(map(tuple, found.tolist()))) if found.any() else np.zeros(len(found), np.int32)


def _split(log_seconds: Floats, hosts: NDArray[np.int32], order: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    fewest = max(_CLASS_DEVICES, int(np.ceil(_CLASS_SHARE * len(order))))
    if len(order) < 2 * fewest:
        return [order]
    gaps = np.diff(log_seconds[order])
    cut = int(np.argmax(gaps[fewest - 1 : len(order) - fewest])) + fewest
    fast, slow = order[:cut], order[cut:]
    far = np.median(log_seconds[slow]) - np.median(log_seconds[fast]) >= np.log(_CLASS_RATIO)
    spread = max(_spread(log_seconds[fast]), _spread(log_seconds[slow]))
    several_hosts = min(len(np.unique(hosts[fast])), len(np.unique(hosts[slow]))) > 1
    if not (far and several_hosts and gaps[cut - 1] >= _CLASS_GAP_SPREADS * spread):
        return [order]
    return _split(log_seconds, hosts, fast) + _split(log_seconds, hosts, slow)


def _spread(values: Floats) -> float:
    return max(_SPREAD_FLOOR, 1.4826 * float(np.median(np.abs(values - np.median(values)))))
