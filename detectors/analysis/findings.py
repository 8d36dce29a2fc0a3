"""What severity and action the evidence against a device or node amounts to, and when all of a node is accused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.devices import Devices
from laggard.detectors.statistics.history import History
from laggard.detectors.statistics.readings import Flags
from laggard.detectors.statistics.thresholds import VERY_SLOW
from laggard.detectors.verdict import Evidence, Severity, Verdict

_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")
_NEAR = 0.5  # of the way to the bar: such a device counts towards its node's verdict, but gets none of its own


def verdict_of(device: tuple[str, str | None], found: Slow, *, sure: bool, own_past: bool = False) -> Verdict:
    """Return a verdict with its severity and action; ``sure``: whether it is certain that the device is slow."""
    severity: Severity = "suspect" if not sure else "very slow" if found.slowdown >= VERY_SLOW else "slow"
    evidence = Evidence(*device, found, own_past)
    return Verdict(*device, found.slowdown, severity, evidence, action="restart" if sure else "report")


def rank_of(verdict: Verdict) -> int:
    """Return the order of verdicts, from 1: a higher rank than before is worth a new one."""
    is_by_peers = verdict.severity == "suspect" and not verdict.evidence.own_past
    return 2 + 2 * _SEVERITIES.index(verdict.severity) - is_by_peers


def slow_of(verdict: Verdict) -> Slow:
    """Return how slow the device is that a verdict of the analysis is about."""
    if not isinstance(verdict.evidence.found, Slow):
        raise TypeError(f"{verdict!r} is not about a slow device")
    return verdict.evidence.found


def new_verdicts(
    history: History, devices: Devices, verdict_at: Callable[[int, Flags], Verdict], min_slowdown: float, budget: float
) -> list[Verdict]:
    """Return what is worth a new verdict, and note it as reported.

    ``verdict_at`` judges the device of a row by some of its excursions.
    """
    found, reported, new = np.any(history.found, axis=0), history.reported, list[Verdict]()
    news = found & (reported < 2 * len(_SEVERITIES))  # nothing is graver
    large = (history.number > 0) & (history.odds >= -_NEAR * np.log(budget)) | history.found
    which = np.where(found, history.found, large)
    some = np.flatnonzero(large.any(axis=0))
    for host in np.unique(devices.hosts[news]).tolist():
        rows = some[devices.hosts[some] == host].tolist()
        of_rows = {row: verdict_at(row, which[:, row]) for row in rows}
        merged = merged_by_node(of_rows.values(), devices.number_on, min_slowdown)
        if merged[0].gpu is None:
            rank = rank_of(merged[0])
            new += merged if rank > np.median(reported[rows]) else []  # one that was well in between is no news
            reported[rows] = np.maximum(reported[rows], rank)
            continue
        for row, verdict in of_rows.items():
            if news[row] and rank_of(verdict) > reported[row]:
                reported[row] = rank_of(verdict)
                new.append(verdict)
    return new


def merged_by_node(verdicts: Iterable[Verdict], number_on: Mapping[str, int], min_slowdown: float) -> list[Verdict]:
    """If there are verdicts against all devices of a node, two or more, merge them into one against the node."""
    # They stay apart if some devices are slow but half of them by less than matters: then the node as a whole is not.
    by_host, merged = defaultdict[str, list[Verdict]](list), list[Verdict]()
    for verdict in verdicts:
        by_host[verdict.host].append(verdict)
    for host, found in by_host.items():
        typical = sorted(verdict.slowdown for verdict in found)[(len(found) - 1) // 2]
        worst = max(found, key=rank_of)
        is_sure = worst.severity != "suspect"
        if not 1 < len(found) == number_on[host] or (is_sure and typical < min_slowdown):
            merged += found
            continue
        whole = replace(slow_of(worst), slowdown=typical, n_devices=len(found))
        merged.append(verdict_of((host, None), whole, sure=is_sure, own_past=worst.evidence.own_past))
    return merged
