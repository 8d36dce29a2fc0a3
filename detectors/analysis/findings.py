"""What severity and action the evidence against a device or node amounts to, and when all of a node is accused."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.common_mode import known_time
from laggard.detectors.statistics.devices import Devices
from laggard.detectors.statistics.excursions import Slowness
from laggard.detectors.statistics.history import AT_TIMES, History
from laggard.detectors.statistics.readings import Flags
from laggard.detectors.statistics.thresholds import VERY_SLOW
from laggard.detectors.verdict import Evidence, Severity, Verdict

_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")
_TOP_RANK = 2 * len(_SEVERITIES)  # nothing is said after it
_MOST = math.log(1e12)  # nats: more jobs than that need not be told
_MEASURED = math.log(20)  # nats: so much more often than the budget says, chance does it in independent noise
_NEAR = 0.5  # of the way to the bar: such a device counts towards its node's verdict, but gets none of its own


def verdict_of(device: tuple[str, str | None], found: Slow, *, sure: bool, own_past: bool = False) -> Verdict:
    """Return a verdict with its severity and action; ``sure``: whether it is certain that the device is slow."""
    severity: Severity = "suspect" if not sure else "very slow" if found.slowdown >= VERY_SLOW else "slow"
    evidence = Evidence(*device, found, own_past)
    return Verdict(*device, found.slowdown, severity, evidence, action="restart" if sure else "report")


def rank_of(verdict: Verdict) -> int:
    """Return the order of verdicts, from 1: a higher rank than before is worth a new one."""
    step = verdict.evidence.own_past if verdict.severity == "suspect" else verdict.action == "restart"
    return 1 + 2 * _SEVERITIES.index(verdict.severity) + step


def slow_of(verdict: Verdict) -> Slow:
    """Return how slow the device is that a verdict of the analysis is about."""
    if not isinstance(verdict.evidence.found, Slow):
        raise TypeError(f"{verdict!r} is not about a slow device")
    return verdict.evidence.found


def new_verdicts(
    history: History,
    devices: Devices,
    slow_at: Callable[[int, Flags], Slowness],
    min_slowdown: float,
    budget: float,
    now_s: float,
) -> list[Verdict]:
    """Return what is worth a new verdict, and note it as reported.

    ``slow_at`` says how slow the device of a row is by some of its excursions.
    """
    found, reported, new = np.any(history.found, axis=0), history.reported, list[Verdict]()
    news = found & (reported < _TOP_RANK)
    if not news.any():
        return new
    large = (history.number > 0) & (history.odds >= -_NEAR * np.log(budget)) | history.found
    which = np.where(found, history.found, large)
    rows_on = defaultdict[int, list[int]](list)
    for row in np.flatnonzero(large.any(axis=0) & np.isin(devices.hosts, devices.hosts[news])).tolist():
        rows_on[int(devices.hosts[row])].append(row)
    for rows in rows_on.values():
        of_rows = {
            row: _verdict(row, slow_at(row, which[:, row]), history, devices, min_slowdown, now_s) for row in rows
        }
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


def _verdict(
    row: int, slow: Slowness, history: History, devices: Devices, min_slowdown: float, now_s: float
) -> Verdict:
    at_times = slow.clock == AT_TIMES
    found = Slow(
        slow.shown,
        "own past" if slow.own_past else "peers",
        devices.size_at(row) - 1,
        rounds=int(history.lasts[AT_TIMES if at_times else 0, row]),
        jobs=math.exp(min(float(history.odds[slow.clock, row]), _MOST) - _MEASURED),
        since_s=known_time(float(history.since_s[row])),
        now_s=known_time(now_s),
        share=slow.share if at_times else None,
    )
    is_sure = not at_times and slow.slowdown >= min_slowdown
    return verdict_of(devices.names[row], found, sure=is_sure, own_past=slow.own_past)


def merged_by_node(verdicts: Iterable[Verdict], number_on: Mapping[str, int], min_slowdown: float) -> list[Verdict]:
    """If there are verdicts against all devices of a node, two or more, merge them into one against the node."""
    # They stay apart if some devices are slow but half of them by less than matters: then the node as a whole is not.
    merged = []
    for host, found in _by_host(verdicts).items():
        typical = sorted(found, key=lambda verdict: verdict.slowdown)[(len(found) - 1) // 2]
        worst = max(found, key=rank_of)
        is_sure = worst.severity != "suspect"
        if not 1 < len(found) == number_on[host] or (is_sure and typical.slowdown < min_slowdown):
            merged += found
            continue
        slow = [slow_of(verdict) for verdict in found]
        whole = replace(
            slow_of(typical),
            rounds=max(each.rounds for each in slow),
            jobs=slow_of(worst).jobs,
            since_s=min((each.since_s for each in slow if each.since_s is not None), default=None),
            n_devices=len(slow),
        )
        merged.append(verdict_of((host, None), whole, sure=is_sure, own_past=worst.evidence.own_past))
    return merged


def with_nodes(found: Iterable[Verdict], nodes: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts with those on nodes in place of their devices', unless these say as much or more."""
    by_host = _by_host(found)
    for node in nodes:
        said = by_host[node.host]
        if node.severity != "suspect":
            said = [verdict for verdict in said if verdict.gpu is None and verdict.severity != "suspect"]
        if not said:
            by_host[node.host] = [node]
    return [verdict for verdicts in by_host.values() for verdict in verdicts]


def _by_host(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    by_host = defaultdict[str, list[Verdict]](list)
    for verdict in verdicts:
        by_host[verdict.host].append(verdict)
    return by_host
