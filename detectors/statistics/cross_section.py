"""Cross-section: judges devices and nodes by one set of samples, without history. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.device_index import DeviceIndex
from laggard.detectors.statistics.estimates import (
    Floats,
    center_and_spread,
    high_median,
    log_fastest,
    log_usual,
    repeat_noise,
)
from laggard.detectors.statistics.exceedance import born_slow
from laggard.detectors.statistics.findings import Terms
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import REPORT, RESTART
from laggard.detectors.verdict import Verdict

_USUAL_NOISES = 4.0  # the usual sample of a healthy device is more often disturbed than its fastest
_FEWEST_NODES = 3
_NODE_PART = 4  # of a node's devices, one in so many may be faster than what the node is judged by


def slow_devices(repeats: Floats, index: DeviceIndex, grouping: Grouping, terms: Terms) -> list[Verdict]:
    """Return the devices that are slower than their peers, by ``(n_repeats, n_probes, n_devices)`` samples."""
    # Each is judged by its fastest sample, and by its usual one: it may be slow most of the time only.
    noise = repeat_noise(repeats)
    slowdown, level = born_slow(log_fastest(repeats), noise, grouping.groups, terms.thresholds)
    usual, usual_level = born_slow(log_usual(repeats), noise, grouping.groups, terms.thresholds, _USUAL_NOISES)
    by_usual = usual_level > level
    slowdown, level = np.where(by_usual, usual, slowdown), np.where(by_usual, usual_level, level)
    return [
        terms.verdict(
            index.devices[row],
            Slow(float(slowdown[row]), "peers", grouping.size_at(row) - 1),
            sure=bool(level[row] == RESTART),
        )
        for row in map(int, np.flatnonzero(level >= REPORT))
    ]


def slow_nodes(repeats: Floats, index: DeviceIndex, grouping: Grouping, terms: Terms) -> list[Verdict]:
    """Return the nodes that are slower than the others."""
    # Each is judged by what three quarters of its devices exceed: chips differ, but those of a node not all in one way.
    sizes = np.bincount(index.hosts)
    if len(sizes) < _FEWEST_NODES or sizes.min() < 2:
        return []
    log_seconds, noise = log_fastest(repeats), high_median(repeat_noise(repeats), [slice(None)])
    middle, _ = center_and_spread(log_seconds, grouping.groups)
    offset = log_seconds - grouping.per_device(middle)
    quarter = np.cumsum(sizes) - sizes + sizes // _NODE_PART
    by_node = np.array([row[np.lexsort((row, index.hosts))[quarter]] for row in offset], np.float32)
    noise = np.broadcast_to(noise, by_node.shape)
    slowdown, level = born_slow(by_node, noise, [slice(None)], terms.thresholds)
    _, first = np.unique(index.hosts, return_index=True)
    return [
        terms.verdict(
            (index.devices[first[node]][0], None),
            Slow(float(slowdown[node]), "other nodes", len(sizes) - 1, n_devices=int(sizes[node]), are_together=True),
            sure=bool(level[node] == RESTART),
        )
        for node in map(int, np.flatnonzero(level >= REPORT))
    ]


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
