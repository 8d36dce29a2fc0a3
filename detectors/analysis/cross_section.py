"""Cross-section: judges devices and nodes by one set of samples, without history. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.analysis.findings import merged_by_node, verdict_of
from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.device_index import DeviceIndex, ReadingsByProbe, arrays_by_probe, check_names
from laggard.detectors.statistics.estimates import Floats, log_fastest, log_usual, repeat_noise, repeats_of
from laggard.detectors.statistics.grouping import Grouping, labelled
from laggard.detectors.statistics.thresholds import REPORT, RESTART, Thresholds
from laggard.detectors.verdict import Verdict

_NOISES = 2.1  # the fastest sample of a window varies less than that of one round
_USUAL_NOISES = 4.0  # the usual sample of a healthy device is more often disturbed than its fastest
_FEWEST_NODES = 3  # of two, either may be the slow one
_NODE_PART = 4  # of a node's devices, one in so many may be faster than what the node is judged by
_PASSES = 3  # each leaves out what the last one found slow
_MAJORITY = 0.45  # if this share of a group looks slow at once, the peers cannot tell which devices are slow


def judged(
    readings: ReadingsByProbe, labels: Mapping[DeviceId, Hashable] | None, thresholds: Thresholds
) -> list[Verdict]:
    """Return the verdicts on a cross-section."""
    check_names(readings)
    repeats = [repeats_of(seconds) for seconds in arrays_by_probe(readings) if seconds.size]
    if not repeats:
        return []
    index = DeviceIndex(readings)
    grouping = labelled(index.devices, labels)
    nodes = slow_nodes(repeats, index, grouping, thresholds)
    found = slow_devices(repeats, index, grouping, thresholds)
    return with_nodes(merged_by_node(found, index.devices_of, thresholds.min_slowdown), nodes)


def slow_devices(
    of_probes: Sequence[Floats], index: DeviceIndex, grouping: Grouping, thresholds: Thresholds
) -> list[Verdict]:
    """Return the devices that are slower than their peers, by each probe's samples ``(n_repeats, n_devices)``."""
    # Each is judged by its fastest sample, and by its usual one: it may be slow most of the time only.
    noise = list(map(repeat_noise, of_probes))
    slowdown, level = _judged(list(map(log_fastest, of_probes)), noise, grouping, thresholds, _NOISES)
    usual, usual_level = _judged(list(map(log_usual, of_probes)), noise, grouping, thresholds, _USUAL_NOISES)
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
        offset = log_seconds - grouping.per_device(grouping.low_median(log_seconds))
        by_node.append(offset[np.lexsort((offset, index.hosts))[quarter]])
        noise.append(np.broadcast_to(_middle_half(repeat_noise(repeats)), sizes.shape))
    together = Grouping(np.zeros(len(sizes), np.int32))
    slowdown, level = _judged(by_node, noise, together, thresholds, _NOISES)
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
    of_probes: Sequence[Floats], noise: Sequence[Floats], grouping: Grouping, thresholds: Thresholds, noises: float
) -> tuple[Floats, NDArray[np.intp]]:
    """Return by how much each device is slower than its group on its worst probe, and the level that it exceeds."""
    found = [
        _born_slow(log_s, noises * of_log, grouping, thresholds) for log_s, of_log in zip(of_probes, noise, strict=True)
    ]
    exceeds = np.any([each for _, each in found], axis=0)
    return np.exp(np.fmax.reduce([offset for offset, _ in found])), np.count_nonzero(exceeds, axis=0) - 1


def _born_slow(
    log_seconds: Floats, noise: Floats, grouping: Grouping, thresholds: Thresholds
) -> tuple[Floats, list[NDArray[np.bool_]]]:
    """Return how far each device is behind its group, in log seconds, and by level which devices exceed."""
    # The reference is the group without the devices that the previous pass found slow: a slow quarter would move the
    # median by half a spread, and widen the spread by a fifth.
    counts, out = grouping.count(~np.isnan(log_seconds)), grouping.per_device
    typical = np.array([_middle_half(noise[grouping.codes == group]) for group in range(len(grouping))], np.float32)
    slow = np.zeros(log_seconds.shape, np.bool_)
    for _ in range(_PASSES):
        middle, spread = grouping.center_and_spread(np.where(slow, np.float32(np.nan), log_seconds))
        limits = [limit + typical for limit in thresholds.against_peers(spread, counts)]
        offset = log_seconds - out(middle)
        slow = offset > out(limits[RESTART])
    exceeds = [offset > out(limit) for limit in limits]
    crowded = [(grouping.count(beyond) >= _MAJORITY * counts) & (counts != 2) for beyond in exceeds]
    return offset, [beyond & ~out(many) for beyond, many in zip(exceeds, crowded, strict=True)]


def _middle_half(noise: Floats) -> float:
    """Return the interquartile mean: steadier than the median with few devices, and as robust to a few noisy ones."""
    known = np.sort(noise[~np.isnan(noise)])
    cut = len(known) // 4
    return float(known[cut : len(known) - cut].mean()) if len(known) else 0.0


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
