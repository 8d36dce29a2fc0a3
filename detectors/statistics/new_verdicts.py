"""New verdicts: devices and nodes whose evidence has crossed the bar, and that were not reported yet."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.device_index import DeviceIndex
from laggard.detectors.statistics.estimates import Floats, center_and_spread
from laggard.detectors.statistics.findings import merged_by_node, rank_of, verdict_of
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import PEER, REPORT, RESTART, SELF, History
from laggard.detectors.verdict import Verdict

_TOP_RANK = 6  # of the severities, worst first: nothing is said after it


class NewVerdicts:
    """Finds what is new in the evidence, and remembers what was reported about whole nodes."""

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
    ) -> list[Verdict]:
        """Return what is worth a new verdict, and mark it as reported."""
        bar, by_test = 1 / budget, history.evidence
        total = by_test[SELF] + by_test[PEER]
        sure = total[RESTART] >= bar
        at_times = history.intermittent
        highest = np.where(sure, _TOP_RANK, np.where(np.maximum(by_test[SELF, REPORT], at_times) >= bar, 2, 1))
        most = np.maximum(np.maximum(*total), at_times)
        new_rows = np.flatnonzero((most >= bar) & (history.reported < highest))
        if not len(new_rows):
            return []
        # A device half-way to the bar counts towards its node's verdict, but gets none of its own.
        near = np.flatnonzero((most >= bar**0.5) & np.isin(index.hosts, index.hosts[new_rows]))
        usual, _ = center_and_spread(history.baseline, grouping.groups)
        by_host: dict[int, dict[int, Verdict]] = defaultdict(dict)
        for row, host in zip(near.tolist(), index.hosts[near].tolist(), strict=True):
            found, is_sure = _found_at(row, history, usual, grouping, budget, now_s)
            own_past = found.reference == "own past"
            by_host[host][row] = verdict_of(index.devices[row], found, sure=is_sure, own_past=own_past)
        np.negative(at_times, out=at_times, where=at_times >= bar)  # said once, until it has been well for long
        new: list[Verdict] = []
        for verdicts in by_host.values():
            certain = {row for row in verdicts if most[row] >= bar}
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


def _found_at(
    row: int, history: History, usual: Floats, grouping: Grouping, budget: float, now_s: float
) -> tuple[Slow, bool]:
    """Return what is found of a device, and whether it is certain; ``usual`` is each group's median baseline."""
    evidence: Floats = history.evidence[..., row]  # test, level
    bar, at_times = 1 / budget, history.intermittent[row]
    sure = bool(evidence[:, RESTART].sum() >= bar)
    which = RESTART if sure else REPORT
    lasting = Slow(
        1.0,
        "own past",
        grouping.size_at(row) - 1,
        rounds=int(history.rounds[row]),
        budget=budget,
        since_s=_known(float(history.since_s[row])),
        now_s=_known(now_s),
    )
    if evidence[:, which].sum() < min(bar, at_times):
        slowdown, share = np.exp(history.recent[:, row].max()), history.density()[row]
        return replace(lasting, slowdown=float(slowdown), e_value=float(at_times), share=float(share)), False
    # If the device's own past is evidence enough, it gives the more precise slowdown.
    is_enough = evidence[SELF, which] >= bar
    test = SELF if is_enough else int(np.argmax(evidence[:, which]))
    size = float(np.median(history.last_residuals(row)))
    if test == PEER and not np.isnan(history.baseline[row]):
        size += float(history.baseline[row] - usual[grouping.codes[row]])
    found = replace(
        lasting,
        slowdown=float(np.exp(size)),
        reference="own past" if test == SELF else "peers",
        e_value=float(evidence[:, which].sum()),
    )
    return found, sure


def _known(time_s: float) -> float | None:
    return None if math.isnan(time_s) else time_s
