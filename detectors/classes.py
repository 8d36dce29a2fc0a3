"""Clear classes of devices, found in the readings where nobody gave a label: GPU models, pipeline stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.grouping import Grouping
from detectors.roster import Roster
from detectors.statistics import Floats, center_and_spread

__all__ = ["clear_classes", "joint_classes", "slow_minorities"]

_CLASS_RATIO = 1.3  # two models or stages differ by more; chips of one model by less
_CLASS_GAP_SPREADS = 6.0
_CLASS_DEVICES = 3
_CLASS_SHARE = 0.1
_SPREAD_FLOOR = 0.003


def joint_classes(log_seconds: Floats, roster: Roster) -> NDArray[np.int32]:
    """Return the joint class of each device over several probes, ``(n_probes, n_devices)`` to ``(n_devices,)``."""
    joint = np.zeros(len(roster), np.int32)
    for row in log_seconds:
        codes = clear_classes(row, roster)
        if codes.any():
            pairs = joint * (codes.max() + 1) + codes
            used = np.bincount(pairs) > 0
            joint = (np.cumsum(used, dtype=np.int32) - 1)[pairs]
    return joint


def clear_classes(log_seconds: Floats, roster: Roster) -> NDArray[np.int32]:
    """Return the clear class of each device of a group, fastest class 0.

    Two GPU models, or pipeline stages, are two tight clusters far apart, each with several devices on several hosts.
    A split needs a gap of six spreads, centers 30 % apart, and on either side three devices, a tenth of all and two
    hosts; and it must follow the hosts, or the places within them.  One slow device, one slow node, a minority that is
    only 20 % slower or scattered over the nodes is no class and stays accused.

    Parameters
    ----------
    log_seconds
        One probe's reading of each device, shape ``(n_devices,)``.
    roster
        Each device's host, and place on it.
    """
    ordered = np.sort(log_seconds)  # NaN sorts last
    missing = np.isnan(log_seconds)
    fastest_of_class = _splits(ordered[: len(ordered) - np.count_nonzero(missing)], log_seconds, roster)
    if not fastest_of_class:
        return np.zeros(len(log_seconds), np.int32)
    codes = np.searchsorted(np.array(fastest_of_class, log_seconds.dtype), log_seconds, side="right")
    return np.where(missing, 0, codes).astype(np.int32)


def slow_minorities(log_seconds: Floats, grouping: Grouping) -> dict[int, float]:
    """Return the devices of each class that is smaller, and clearly slower, than the biggest one, with its slowdown.

    Readings alone cannot tell another model from a minority that is slow because something is broken.
    """
    biggest = int(np.argmax(grouping.sizes))
    center, _ = center_and_spread(log_seconds, grouping.groups)
    behind = np.fmax.reduce(center - center[:, [biggest]], axis=0)
    slow = (grouping.sizes < grouping.sizes[biggest]) & (behind >= np.log(_CLASS_RATIO))
    return {int(row): float(np.exp(behind[grouping.codes[row]])) for row in np.flatnonzero(slow[grouping.codes])}


def _splits(ordered: Floats, log_seconds: Floats, roster: Roster) -> list[np.float32]:
    """Return the fastest reading of each class but the first, among the readings in ``ordered``."""
    cut = _widest_gap(ordered)
    if cut is None:
        return []
    fast = (log_seconds >= ordered[0]) & (log_seconds < ordered[cut])
    slow = (log_seconds >= ordered[cut]) & (log_seconds <= ordered[-1])
    if not _follows_places(fast, slow, roster):
        return []
    sides = [_splits(part, log_seconds, roster) for part in (ordered[:cut], ordered[cut:])]
    return [*sides[0], ordered[cut], *sides[1]]


def _widest_gap(ordered: Floats) -> int | None:
    """Return where the slower of two tight clusters far apart begins, ``None`` where there are no two."""
    fewest = max(_CLASS_DEVICES, int(np.ceil(_CLASS_SHARE * len(ordered))))
    if len(ordered) < 2 * fewest:
        return None
    # How far apart the middles of the two sides can be, wherever the cut is: seldom far enough.
    if ordered[-1 - (fewest - 1) // 2] - ordered[(fewest - 1) // 2] < np.log(_CLASS_RATIO):
        return None
    gaps = np.diff(ordered[fewest - 1 : len(ordered) - fewest + 1])
    cut = int(np.argmax(gaps)) + fewest
    sides = (ordered[:cut], ordered[cut:])
    far = _middle(sides[1]) - _middle(sides[0]) >= np.log(_CLASS_RATIO)
    return cut if far and gaps.max() >= _CLASS_GAP_SPREADS * max(map(_spread, sides)) else None


def _middle(ordered: Floats) -> float:
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _spread(ordered: Floats) -> float:
    return max(_SPREAD_FLOOR, 1.4826 * float(np.median(np.abs(ordered - np.float32(_middle(ordered))))))


def _follows_places(fast: NDArray[np.bool_], slow: NDArray[np.bool_], roster: Roster) -> bool:
    """Return whether both sides have several hosts, and hardly any host, or place on a host, has devices on both."""
    hosts = [_present(roster.hosts, side) for side in (fast, slow)]
    if min(map(np.count_nonzero, hosts)) < 2:
        return False
    return _hardly_shared(*hosts) or _hardly_shared(*(_present(roster.gpus, side) for side in (fast, slow)))


def _present(places: NDArray[np.int32], which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    found = np.zeros(int(places.max()) + 1, np.bool_)
    found[places[which]] = True
    return found


def _hardly_shared(fast: NDArray[np.bool_], slow: NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(fast & slow) <= _CLASS_SHARE * np.count_nonzero(fast | slow))
