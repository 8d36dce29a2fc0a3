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
from laggard.detectors.statistics.findings import Terms, merged_by_node, rank_of
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import PEER, REPORT, RESTART, SELF, History
from laggard.detectors.verdict import Verdict

_TOP_RANK = 6


class NewVerdicts:
    """Finds what is new in the evidence, and remembers what was reported about whole nodes."""

    def __init__(self) -> None:
        self.reported_hosts: dict[str, int] = {}  # rank of the worst verdict against each whole node

    def of_round(
        self, history: History, index: DeviceIndex, grouping: Grouping, terms: Terms, now_s: float
    ) -> list[Verdict]:
        """Return what is worth a new verdict, and mark it as reported."""
        bar = 1 / terms.false_alarm_budget
        by_test = history.evidence.sum(axis=2)
        total = by_test[SELF] + by_test[PEER]
        sure = total[RESTART] >= bar
        at_times = history.intermittent.sum(axis=0)
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
            by_host[host][row] = _verdict_at(row, history, usual, index, grouping, terms, now_s)
        history.intermittent[:, at_times >= bar] *= -1  # said once, until it has been well for long
        found: list[Verdict] = []
        for verdicts in by_host.values():
            certain = {row for row in verdicts if most[row] >= bar}
            found += self._of_host(verdicts, certain, index, history.reported, terms)
        return found

    def _of_host(
        self,
        verdicts: dict[int, Verdict],
        certain: set[int],
        index: DeviceIndex,
        reported: NDArray[np.uint8],
        terms: Terms,
    ) -> list[Verdict]:
        merged = merged_by_node(verdicts.values(), index.devices_of, terms.thresholds)
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


def _verdict_at(
    row: int, history: History, usual: Floats, index: DeviceIndex, grouping: Grouping, terms: Terms, now_s: float
) -> Verdict:
    """Return the verdict on a device; ``usual`` is each group's median baseline, ``(n_probes, n_groups)``."""
    evidence: Floats = history.evidence[..., row]  # test, level, probe
    bar = 1 / terms.false_alarm_budget
    sure = bool(evidence[:, RESTART].sum() >= bar)
    which = RESTART if sure else REPORT
    lasting = Slow(
        1.0,
        "own past",
        grouping.size_at(row) - 1,
        rounds=int(history.rounds[row]),
        since_s=_known(float(history.since_s[row])),
        now_s=_known(now_s),
    )
    if evidence[:, which].sum() < min(bar, history.intermittent[:, row].sum()):
        return terms.verdict(index.devices[row], _at_times(lasting, row, history), sure=False, own_past=True)
    # If the device's own past is evidence enough, it gives the more precise slowdown.
    is_enough = evidence[SELF, which].sum() >= bar
    test = SELF if is_enough else int(np.argmax(evidence[:, which].max(axis=1)))
    probe = int(np.argmax(evidence[test, which]))
    size = float(np.median(history.last_residuals(row, probe)))
    if test == PEER and not np.isnan(history.baseline[probe, row]):
        size += float(history.baseline[probe, row] - usual[probe, grouping.codes[row]])
    found = replace(
        lasting,
        slowdown=float(np.exp(size)),
        reference="own past" if test == SELF else "peers",
        e_value=float(evidence[:, which].sum()),
    )
    return terms.verdict(index.devices[row], found, sure=sure, own_past=test == SELF)


def _at_times(lasting: Slow, row: int, history: History) -> Slow:
    """Return what is found of a device that is slow again and again."""
    probe = int(np.argmax(history.intermittent[:, row]))
    return replace(
        lasting,
        slowdown=float(np.exp(history.recent[:, probe, row].max())),
        e_value=float(history.intermittent[:, row].sum()),
        share=float(history.density(SELF, RESTART)[probe, row]),
    )


def _known(time_s: float) -> float | None:
    return None if math.isnan(time_s) else time_s
