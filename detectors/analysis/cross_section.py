"""Cross-section: judges devices and nodes by one set of samples, without history. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.analysis.findings import merged_by_node, verdict_of
from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.devices import Devices, Grouping, Labels, check_names
from laggard.detectors.statistics.readings import (
    Floats,
    ReadingsByProbe,
    arrays_by_probe,
    log_fastest,
    log_usual,
    repeat_noise,
    repeats_of,
)
from laggard.detectors.statistics.thresholds import MAJORITY, REPORT, RESTART, against_peers
from laggard.detectors.verdict import Verdict

_NOISES = 2.1  # the fastest sample of a window varies less than that of one round
_USUAL_NOISES = 4.0  # the usual sample of a healthy device is more often disturbed than its fastest
_FEWEST_NODES = 3  # of two, either may be the slow one
_NODE_PART = 4  # of a node's devices, one in so many may be faster than what the node is judged by
_PASSES = 3  # each leaves out what the last one found slow


def judged(readings: ReadingsByProbe, labels: Labels | None, min_slowdown: float) -> list[Verdict]:
    """Return the verdicts on a cross-section."""
    check_names(readings)
    repeats = [repeats_of(seconds) for seconds in arrays_by_probe(readings) if seconds.size]
    if not repeats:
        return []
    devices, noise = Devices(readings, labels), list(map(repeat_noise, repeats))
    smallest = float(np.log(min_slowdown))
    fastest = list(map(log_fastest, repeats))
    slowdown, level = _judged(fastest, noise, devices, smallest, _NOISES)
    # By its usual sample as well: a device may be slow most of the time only.
    usual, usual_level = _judged(list(map(log_usual, repeats)), noise, devices, smallest, _USUAL_NOISES)
    slowdown, level = np.where(usual_level > level, usual, slowdown), np.maximum(level, usual_level)
    found = []
    for row in np.flatnonzero(level >= REPORT).tolist():
        slow = Slow(float(slowdown[row]), "peers", devices.size_at(row) - 1)
        found.append(verdict_of(devices.names[row], slow, sure=bool(level[row] == RESTART)))
    found = merged_by_node(found, devices.number_on, min_slowdown)
    nodes, said = _slow_nodes(fastest, noise, devices, smallest), {verdict.host for verdict in found}
    whole = {each.host: each for each in nodes if each.severity != "suspect" or each.host not in said}
    return [verdict for verdict in found if verdict.host not in whole] + list(whole.values())


def _slow_nodes(fastest: Sequence[Floats], noise: Sequence[Floats], devices: Devices, smallest: float) -> list[Verdict]:
    """Judge each node by what three quarters of its devices exceed: chips differ, but a node's not all in one way."""
    names, sizes = list(devices.number_on), np.array(list(devices.number_on.values()))
    if len(sizes) < _FEWEST_NODES or sizes.min() < 2:
        return []
    quarter = np.cumsum(sizes) - sizes + sizes // _NODE_PART
    offsets = [times - devices.per_device(devices.low_median(times)) for times in fastest]
    rows = [np.lexsort((offset, devices.hosts))[quarter] for offset in offsets]
    by_node, of_node = ([each[row] for each, row in zip(values, rows, strict=True)] for values in (offsets, noise))
    slowdown, level = _judged(by_node, of_node, Grouping(np.zeros(len(sizes), np.int32)), smallest, _NOISES)
    found = []
    for node in np.flatnonzero(level >= REPORT).tolist():
        ratio, size = float(slowdown[node]), int(sizes[node])
        slow = Slow(ratio, "other nodes", len(sizes) - 1, n_devices=size, are_together=True)
        found.append(verdict_of((names[node], None), slow, sure=bool(level[node] == RESTART)))
    return found


def _judged(
    of_probes: Sequence[Floats], noise: Sequence[Floats], grouping: Grouping, smallest: float, noises: float
) -> tuple[Floats, NDArray[np.intp]]:
    """Return by how much each device is slower than its group on its worst probe, and the level that it exceeds."""
    out, offsets, exceeds = grouping.per_device, [], []
    for log_seconds, of_log in zip(of_probes, noise, strict=True):
        counts, parts = grouping.count(~np.isnan(log_seconds)), range(grouping.n_groups)
        typical = np.array([_middle_half(noises * of_log[grouping.codes == part]) for part in parts], np.float32)
        # The reference is the group without the devices that the previous pass found slow: a slow quarter would move
        # the median by half a spread, and widen the spread by a fifth.
        slow = np.zeros(log_seconds.shape, np.bool_)
        for _ in range(_PASSES):
            middle, spread = grouping.center_and_spread(np.where(slow, np.float32(np.nan), log_seconds))
            limits = [limit + typical for limit in against_peers(smallest, spread, counts)]
            offset = log_seconds - out(middle)
            slow = offset > out(limits[RESTART])
        beyond = [offset > out(limit) for limit in limits]
        crowded = [(grouping.count(each) >= MAJORITY * counts) & (counts != 2) for each in beyond]
        offsets.append(offset)
        exceeds.append([each & ~out(many) for each, many in zip(beyond, crowded, strict=True)])
    return np.exp(np.fmax.reduce(offsets)), np.count_nonzero(np.any(exceeds, axis=0), axis=0) - 1


def _middle_half(noise: Floats) -> float:
    """Return the interquartile mean: steadier than the median with few devices, and as robust to a few noisy ones."""
    known = np.sort(noise[~np.isnan(noise)])
    cut = len(known) // 4
    return float(known[cut : len(known) - cut].mean()) if len(known) else 0.0
