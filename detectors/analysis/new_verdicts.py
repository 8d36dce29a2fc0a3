"""New verdicts: devices and nodes that were found to be slow, or slower than was reported."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.analysis.episodes import Slowness
from laggard.detectors.analysis.findings import merged_by_node, rank_of, verdict_of
from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.device_index import DeviceIndex
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import AT_TIMES, History
from laggard.detectors.verdict import Verdict

_TOP_RANK = 6  # of the severities, worst first: nothing is said after it
_MOST = math.log(1e12)  # nats: more jobs than that need not be told
_MEASURED = math.log(20)  # nats: so much more often than the budget says, chance does it in independent noise
_NEAR = 0.5  # of the way to the bar: such a device counts towards its node's verdict, but gets none of its own

SlownessAt = Callable[[int, NDArray[np.bool_]], Slowness | None]


class NewVerdicts:
    """Finds what is new, and remembers what was reported about whole nodes."""

    def __init__(self) -> None:
        self.reported_hosts: dict[str, int] = {}  # rank of the worst verdict against each whole node

    def of_round(
        self,
        history: History,
        index: DeviceIndex,
        grouping: Grouping,
        now_s: float,
        *,
        budget: float,
        min_slowdown: float,
        slowness_at: SlownessAt,
    ) -> list[Verdict]:
        """Return what is worth a new verdict, and mark it as reported."""
        found = np.flatnonzero(history.found.any(axis=0) & (history.reported < _TOP_RANK))
        if not len(found):
            return []
        large = (history.number > 0) & (history.odds >= -_NEAR * np.log(budget)) | history.found
        near = np.flatnonzero(large.any(axis=0) & np.isin(index.hosts, index.hosts[found]))
        by_host: dict[int, dict[int, Verdict]] = defaultdict(dict)
        for row, host in zip(near.tolist(), index.hosts[near].tolist(), strict=True):
            which = history.found[:, row] if history.found[:, row].any() else large[:, row]
            slow = slowness_at(row, which)
            if slow is not None:
                by_host[host][row] = _verdict(row, slow, history, index, grouping, now_s, min_slowdown)
        certain, new = set(found.tolist()), list[Verdict]()
        for verdicts in by_host.values():
            new += self._of_host(verdicts, certain, index, history.reported, min_slowdown)
        return new

    def _of_host(
        self,
        verdicts: dict[int, Verdict],
        certain: set[int],
        index: DeviceIndex,
        reported: NDArray[np.uint8],
        min_slowdown: float,
    ) -> list[Verdict]:
        merged = merged_by_node(verdicts.values(), index.devices_of, min_slowdown)
        if merged[0].gpu is not None:
            new = {row: found for row, found in verdicts.items() if row in certain and rank_of(found) > reported[row]}
            for row, found in new.items():
                reported[row] = rank_of(found)
            return list(new.values())
        [node] = merged
        rows, rank = list(verdicts), rank_of(node)
        is_new = rank > self.reported_hosts.get(node.host, 0) and rank > reported[rows].min()
        self.reported_hosts[node.host] = rank
        reported[rows] = np.maximum(reported[rows], rank)
        return [node] if is_new else []


def _verdict(
    row: int,
    slow: Slowness,
    history: History,
    index: DeviceIndex,
    grouping: Grouping,
    now_s: float,
    min_slowdown: float,
) -> Verdict:
    at_times = slow.clock == AT_TIMES
    found = Slow(
        slow.shown,
        "own past" if slow.own_past else "peers",
        grouping.size_at(row) - 1,
        rounds=int(history.lasts[AT_TIMES if at_times else 0, row]),
        jobs=math.exp(min(float(history.odds[slow.clock, row]), _MOST) - _MEASURED),
        since_s=_known(float(history.since_s[row])),
        now_s=_known(now_s),
        share=slow.share if at_times else None,
    )
    is_sure = not at_times and slow.slowdown >= min_slowdown
    return verdict_of(index.devices[row], found, sure=is_sure, own_past=slow.own_past)


def _known(time_s: float) -> float | None:
    return None if math.isnan(time_s) else time_s
