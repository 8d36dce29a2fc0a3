"""What severity and action the evidence against a device or node amounts to, and when all of a node is accused."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.thresholds import Thresholds
from laggard.detectors.verdict import Action, Evidence, Severity, Verdict

_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's settings: how certain to be, how slow is slow, and when a restart is worth it (``None``: always)."""

    false_alarm_budget: float
    thresholds: Thresholds
    restart_cost: RestartCost | None

    def verdict(self, device: tuple[str, str | None], found: Slow, *, sure: bool, own_past: bool = False) -> Verdict:
        """Return a verdict with its severity and action; ``sure``: whether it is certain that the device is slow."""
        slowdown = found.slowdown
        severity: Severity = "suspect"
        if sure:
            severity = "very slow" if slowdown >= self.thresholds.very_slow else "slow"
        slow_for_s = math.nan if found.since_s is None or found.now_s is None else found.now_s - found.since_s
        worth_it = self.restart_cost is None or self.restart_cost.worthwhile(slowdown, slow_for_s)
        action: Action = "restart" if sure and worth_it else "report"
        evidence = Evidence(*device, replace(found, budget=self.false_alarm_budget), own_past)
        return Verdict(*device, slowdown, severity, evidence, action=action)


def rank_of(verdict: Verdict) -> int:
    """Return the order of verdicts, from 1: a higher rank than before is worth a new one."""
    step = verdict.evidence.own_past if verdict.severity == "suspect" else verdict.action == "restart"
    return 1 + 2 * _SEVERITIES.index(verdict.severity) + step


def merged_by_node(verdicts: Iterable[Verdict], devices_of: Mapping[str, int], thresholds: Thresholds) -> list[Verdict]:
    """If there are verdicts against all devices of a node, two or more, merge them into one against the node."""
    # They stay apart if some devices are slow but half of them by less than matters: then the node as a whole is not.
    by_host: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_host[verdict.host].append(verdict)
    merged = []
    for host, found in by_host.items():
        node = _of_node(found, thresholds) if 1 < len(found) == devices_of[host] else None
        merged += found if node is None else [node]
    return merged


def _of_node(verdicts: list[Verdict], thresholds: Thresholds) -> Verdict | None:
    typical = sorted(verdicts, key=lambda verdict: verdict.slowdown)[(len(verdicts) - 1) // 2]
    worst = max(verdicts, key=rank_of)
    severity = worst.severity
    if severity != "suspect":
        if typical.slowdown < thresholds.min_slowdown:
            return None
        severity = "very slow" if typical.slowdown >= thresholds.very_slow else "slow"
    found = [_slow(verdict) for verdict in verdicts]
    whole = replace(
        _slow(typical),
        rounds=max(each.rounds for each in found),
        e_value=_slow(worst).e_value,
        since_s=min((each.since_s for each in found if each.since_s is not None), default=None),
        n_devices=len(found),
    )
    evidence = Evidence(typical.host, None, whole, worst.evidence.own_past)
    return replace(typical, gpu=None, severity=severity, action=worst.action, evidence=evidence)


def _slow(verdict: Verdict) -> Slow:
    if not isinstance(verdict.evidence.found, Slow):
        raise TypeError(f"{verdict!r} is not about a slow device")
    return verdict.evidence.found
