"""Findings: the evidence against a device or node in one round, and what severity and action it amounts to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.statistics.thresholds import Thresholds
from laggard.detectors.verdict import Action, Severity, Verdict, how_slow, moment, plural, short

_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")


@dataclass(frozen=True, slots=True)
class Finding:
    """The evidence against one device or node, before it is put into words.

    Attributes
    ----------
    reference
        What it was compared with, for instance ``its 15 peers`` or ``its own past and 15 peers``.
    own_past
        Whether it is slower than its own past: new even for a device that was slow from the start.
    rounds
        Number of rounds since the first slow one.
    e_value
        Evidence after all corrections, to be compared with ``1 / budget``; ``None`` for a single cross-section.
    since_s, now_s
        Unix time of the first slow round and of the last one; ``NaN`` if unknown.
    """

    host: str
    gpu: str | None
    slowdown: float
    severity: Severity
    action: Action
    reference: str
    own_past: bool
    rounds: int
    e_value: float | None
    since_s: float
    budget: float
    note: str = ""
    now_s: float = math.nan
    at_times: bool = False

    @property
    def rank(self) -> int:
        """Order of findings, from 1: a higher rank than before is worth a new verdict."""
        step = self.own_past if self.severity == "suspect" else self.action == "restart"
        return 1 + 2 * _SEVERITIES.index(self.severity) + step


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's settings: how certain to be, how slow is slow, and when a restart is worth it (``None``: always)."""

    false_alarm_budget: float
    thresholds: Thresholds
    restart_cost: RestartCost | None

    def finding(
        self,
        device: tuple[str, str | None],
        slowdown: float,
        *,
        sure: bool,
        reference: str,
        own_past: bool = False,
        rounds: int = 1,
        e_value: float | None = None,
        since_s: float = math.nan,
        now_s: float = math.nan,
        note: str = "",
    ) -> Finding:
        """Return a finding with its severity and action; ``sure``: whether it is certain that the device is slow."""
        severity: Severity = "suspect"
        if sure:
            severity = "very slow" if slowdown >= self.thresholds.very_slow else "slow"
        worth_it = self.restart_cost is None or self.restart_cost.worthwhile(slowdown, now_s - since_s)
        action: Action = "restart" if sure and worth_it else "report"
        budget = self.false_alarm_budget
        return Finding(
            *device, slowdown, severity, action, reference, own_past, rounds, e_value, since_s, budget, note, now_s
        )


def merged_by_node(findings: Iterable[Finding], devices_of: Mapping[str, int], thresholds: Thresholds) -> list[Finding]:
    """If there are findings against all devices of a node, two or more, merge them into one against the node.

    They stay apart if some devices are slow but half of them by less than matters: then the node as a whole is not.
    """
    by_host: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_host[finding.host].append(finding)
    merged = []
    for host, found in by_host.items():
        node = _of_node(found, thresholds) if 1 < len(found) == devices_of[host] else None
        merged += found if node is None else [node]
    return merged


def _of_node(found: list[Finding], thresholds: Thresholds) -> Finding | None:
    typical = sorted(found, key=lambda finding: finding.slowdown)[(len(found) - 1) // 2]
    worst = max(found, key=lambda finding: finding.rank)
    severity = worst.severity
    if severity != "suspect":
        if typical.slowdown < thresholds.min_slowdown:
            return None
        severity = "very slow" if typical.slowdown >= thresholds.very_slow else "slow"
    return replace(
        typical,
        gpu=None,
        severity=severity,
        action=worst.action,
        own_past=worst.own_past,
        rounds=max(finding.rounds for finding in found),
        e_value=worst.e_value,
        since_s=min((f.since_s for f in found if not math.isnan(f.since_s)), default=math.nan),
        note=", ".join(filter(None, (f"all its {len(found)} devices", typical.note))),
    )


def verdict_of(finding: Finding) -> Verdict:
    """Put a finding into words: one sentence with its numbers, and the time in UTC."""
    who = finding.host if finding.gpu is None else f"{finding.host} gpu {finding.gpu}"
    parts = [f"{how_slow(finding.slowdown)} {finding.reference}"]
    if math.isfinite(finding.since_s):
        parts[0] += f" since {moment(finding.since_s, finding.now_s)}"
    if finding.note:
        parts.append(finding.note)
    if finding.e_value is not None:
        parts += [
            plural(finding.rounds),
            f"e-value {short(finding.e_value)}",
            f"false-alarm budget {short(finding.budget)}",
        ]
    return Verdict(
        host=finding.host,
        gpu=finding.gpu,
        slowdown=finding.slowdown,
        severity=finding.severity,
        evidence=f"{who}: {', '.join(parts)}",
        action=finding.action,
        own_past=finding.own_past,
        at_times=finding.at_times,
    )
