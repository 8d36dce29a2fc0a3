"""What is new with a round: devices and nodes whose evidence has crossed the bar, and that were not told of yet."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from detectors.findings import Finding, Terms, merged_by_node
from detectors.grouping import Grouping
from detectors.history import PEER, REPORT, RESTART, SELF, History
from detectors.roster import Roster
from detectors.statistics import Floats, center_and_spread

__all__ = ["News"]

_TOP_RANK = 6


class News:
    """Looks for news in the evidence, and keeps what was told of nodes.

    Attributes
    ----------
    told_hosts
        Rank of the worst verdict against a whole node.
    """

    def __init__(self) -> None:
        self.told_hosts: dict[str, int] = {}

    def of_round(
        self, history: History, roster: Roster, grouping: Grouping, terms: Terms, now_s: float
    ) -> list[Finding]:
        """Return what is worth a verdict, and note it as told."""
        bar = 1 / terms.false_alarm_budget
        by_test = history.evidence.sum(axis=2)
        total = by_test[SELF] + by_test[PEER]
        sure = total[RESTART] >= bar
        highest = np.where(sure, _TOP_RANK, np.where(by_test[SELF, REPORT] >= bar, 2, 1))
        most = np.maximum(*total)
        news = np.flatnonzero((most >= bar) & (history.told < highest))
        if not len(news):
            return []
        # Devices half-way to the bar count for their node, not by themselves.
        near = np.flatnonzero((most >= bar**0.5) & np.isin(roster.hosts, roster.hosts[news]))
        usual, _ = center_and_spread(history.baseline, grouping.groups)
        by_host: dict[int, dict[int, Finding]] = defaultdict(dict)
        for row, host in zip(near.tolist(), roster.hosts[near].tolist(), strict=True):
            by_host[host][row] = _finding_at(row, history, usual, roster, grouping, terms, now_s)
        found: list[Finding] = []
        for findings in by_host.values():
            certain = {row for row in findings if most[row] >= bar}
            found += self._of_host(findings, certain, roster, history.told)
        return found

    def _of_host(
        self, findings: dict[int, Finding], certain: set[int], roster: Roster, told: NDArray[np.uint8]
    ) -> list[Finding]:
        merged = merged_by_node(findings.values(), roster.devices_of)
        if merged[0].gpu is not None:
            news = {row: found for row, found in findings.items() if row in certain and found.rank > told[row]}
            for row, found in news.items():
                told[row] = found.rank
            return list(news.values())
        [node] = merged
        rows = list(findings)
        is_new = node.rank > self.told_hosts.get(node.host, 0) and node.rank > told[rows].min()
        self.told_hosts[node.host] = node.rank
        told[rows] = np.maximum(told[rows], node.rank)
        return [node] if is_new else []


def _finding_at(
    row: int, history: History, usual: Floats, roster: Roster, grouping: Grouping, terms: Terms, now_s: float
) -> Finding:
    """Return what is known against a device; ``usual`` is each group's middle baseline, ``(n_probes, n_groups)``."""
    evidence: Floats = history.evidence[..., row]  # test, level, probe
    bar = 1 / terms.false_alarm_budget
    sure = bool(evidence[:, RESTART].sum() >= bar)
    which = RESTART if sure else REPORT
    # The own past says more exactly by how much, where it suffices by itself.
    enough = evidence[SELF, which].sum() >= bar
    test = SELF if enough else int(np.argmax(evidence[:, which].max(axis=1)))
    probe = int(np.argmax(evidence[test, which]))
    size = float(np.median(history.last_residuals(row, probe)))
    if test == PEER and not np.isnan(history.baseline[probe, row]):
        size += float(history.baseline[probe, row] - usual[probe, grouping.codes[row]])
    others = grouping.size_at(row) - 1
    return terms.finding(
        roster.devices[row],
        float(np.exp(size)),
        sure=sure,
        reference=f"its {others} peers" if test == PEER else f"its own past and {others} peers",
        own_past=test == SELF,
        rounds=int(history.rounds[row]),
        e_value=float(evidence[:, which].sum()),
        since_s=float(history.since_s[row]),
        now_s=now_s,
    )
