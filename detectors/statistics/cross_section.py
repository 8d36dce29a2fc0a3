"""Cross-section: judges devices and nodes by one set of samples, without history. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.device_index import DeviceIndex
from laggard.detectors.statistics.estimates import (
    Floats,
    Group,
    center_and_spread,
    high_median,
    log_fastest,
    log_usual,
    repeat_noise,
)
from laggard.detectors.statistics.exceedance import born_slow
from laggard.detectors.statistics.findings import verdict_of
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import REPORT, RESTART
from laggard.detectors.statistics.thresholds import Thresholds
from laggard.detectors.verdict import Verdict

_NOISES = 2.1  # the fastest sample of a window varies less than that of one round
_USUAL_NOISES = 4.0  # the usual sample of a healthy device is more often disturbed than its fastest
_FEWEST_NODES = 3  # of two, either may be the slow one
_NODE_PART = 4  # of a node's devices, one in so many may be faster than what the node is judged by


def slow_devices(
    of_probes: Sequence[Floats], index: DeviceIndex, grouping: Grouping, thresholds: Thresholds
) -> list[Verdict]:
    """Return the devices that are slower than their peers, by each probe's samples ``(n_repeats, n_devices)``."""
    # Each is judged by its fastest sample, and by its usual one: it may be slow most of the time only.
    noise, groups = list(map(repeat_noise, of_probes)), grouping.groups
    slowdown, level = _judged(list(map(log_fastest, of_probes)), noise, groups, thresholds, _NOISES)
    usual, usual_level = _judged(list(map(log_usual, of_probes)), noise, groups, thresholds, _USUAL_NOISES)
    by_usual = usual_level > level
    slowdown, level = np.where(by_usual, usual, slowdown), np.where(by_usual, usual_level, level)
    return [
        verdict_of(
            index.devices[row],
            Slow(float(slowdown[row]), "peers", grouping.size_at(row) - 1),
            sure=bool(level[row] == RESTART),
        )
        for row in map(int, np.flatnonzero(level >= REPORT))
    ]


def slow_nodes(
    of_probes: Sequence[Floats], index: DeviceIndex, grouping: Grouping, thresholds: Thresholds
) -> list[Verdict]:
    """Return the nodes that are slower than the others."""
    # Each is judged by what three quarters of its devices exceed: chips differ, but those of a node not all in one way.
    sizes = np.bincount(index.hosts)
    if len(sizes) < _FEWEST_NODES or sizes.min() < 2:
        return []
    quarter = np.cumsum(sizes) - sizes + sizes // _NODE_PART
    by_node, noise = [], []
    for repeats in of_probes:
        log_seconds = log_fastest(repeats)
        offset = log_seconds - grouping.per_device(center_and_spread(log_seconds, grouping.groups)[0])
        by_node.append(offset[np.lexsort((offset, index.hosts))[quarter]])
        noise.append(np.broadcast_to(high_median(repeat_noise(repeats), [slice(None)]), sizes.shape))
    slowdown, level = _judged(by_node, noise, [slice(None)], thresholds, _NOISES)
    _, first = np.unique(index.hosts, return_index=True)
    return [
        verdict_of(
            (index.devices[first[node]][0], None),
            Slow(float(slowdown[node]), "other nodes", len(sizes) - 1, n_devices=int(sizes[node]), are_together=True),
            sure=bool(level[node] == RESTART),
        )
        for node in map(int, np.flatnonzero(level >= REPORT))
    ]


def _judged(
    of_probes: Sequence[Floats], noise: Sequence[Floats], groups: Sequence[Group], thresholds: Thresholds, noises: float
) -> tuple[Floats, NDArray[np.intp]]:
    """Return by how much each device is slower than its group on its worst probe, and the level that it exceeds."""
    found = [
        born_slow(log_s, of_log, groups, thresholds, noises) for log_s, of_log in zip(of_probes, noise, strict=True)
    ]
    exceeds = np.any([each for _, each in found], axis=0)
    return np.exp(np.fmax.reduce([offset for offset, _ in found])), np.count_nonzero(exceeds, axis=0) - 1


def with_nodes(found: Iterable[Verdict], nodes: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts with those on nodes in place of their devices', unless these say as much or more."""
    by_host: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in found:
        by_host[verdict.host].append(verdict)
    for node in nodes:
        of_devices = by_host[node.host]
        is_sure = node.severity != "suspect"
        says_as_much = any((f.severity != "suspect") >= is_sure and (not is_sure or f.gpu is None) for f in of_devices)
        if not says_as_much:
            by_host[node.host] = [node]
    return [verdict for verdicts in by_host.values() for verdict in verdicts]
