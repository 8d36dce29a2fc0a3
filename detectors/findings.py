"""From evidence to verdicts: severity, device or whole node, action, and the sentence that explains it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from detectors.cost import RestartCost
from detectors.readings import Device
from detectors.thresholds import Thresholds
from detectors.verdict import Action, Severity, Verdict

__all__ = ["Finding", "Terms", "merged_by_node", "verdict_of"]

_TIMES_FROM = 3.0  # "15.4 times as slow" reads better than "1440 % slower"
_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known against one device or node.

    Attributes
    ----------
    reference
        What it was compared with: ``its 15 peers``, ``its own past and 15 peers``.
    own_past
        Whether it is slower than its own past: news even of a device that was born slow.
    rounds
        Since the first slow one.
    e_value
        Evidence after all corrections, to be read against ``1 / budget``; ``None`` for a single cross-section.
    since_s
        Unix time of the first slow round, ``NaN`` if no time was given.
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

    @property
    def rank(self) -> int:
        """Order of findings: a higher rank is worth a new verdict, 0 is none."""
        step = self.own_past if self.severity == "suspect" else self.action == "restart"
        return 1 + 2 * _SEVERITIES.index(self.severity) + step


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's terms: how sure to be, how slow is slow, and when a restart is worth it (``None``: always)."""

    false_alarm_budget: float
    thresholds: Thresholds
    restart_cost: RestartCost | None

    def finding(
        self,
        device: Device,
        slowdown: float,
        *,
        sure: bool,
        reference: str,
        own_past: bool = False,
        rounds: int = 1,
        e_value: float | None = None,
        since_s: float = np.nan,
        now_s: float = np.nan,
        note: str = "",
    ) -> Finding:
        """Return a finding with the severity and the action that the terms give it; ``sure`` that it is slow."""
        severity: Severity = "suspect"
        if sure:
            severity = "very slow" if slowdown >= self.thresholds.very_slow else "slow"
        worth_it = self.restart_cost is None or self.restart_cost.worthwhile(slowdown, now_s - since_s)
        action: Action = "restart" if sure and worth_it else "report"
        budget = self.false_alarm_budget
        return Finding(*device, slowdown, severity, action, reference, own_past, rounds, e_value, since_s, budget, note)


def merged_by_node(findings: Iterable[Finding], devices_of: Mapping[str, int]) -> list[Finding]:
    """Replace the findings against all the devices of a node (of two or more) by one against the node."""
    by_host: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_host[finding.host].append(finding)
    merged = []
    for host, found in by_host.items():
        if devices_of[host] > 1 and len(found) == devices_of[host]:
            merged.append(_of_node(found))
        else:
            merged.extend(found)
    return merged


def _of_node(found: list[Finding]) -> Finding:
    typical = sorted(found, key=lambda finding: finding.slowdown)[(len(found) - 1) // 2]
    worst = max(found, key=lambda finding: finding.rank)
    return replace(
        typical,
        gpu=None,
        severity=worst.severity,
        action=worst.action,
        own_past=worst.own_past,
        rounds=max(finding.rounds for finding in found),
        e_value=worst.e_value,
        since_s=float(np.fmin.reduce([finding.since_s for finding in found])),
        note=", ".join(filter(None, (f"all its {len(found)} devices", typical.note))),
    )


def verdict_of(finding: Finding) -> Verdict:
    """Put a finding into words: one sentence with its numbers, the time of day in UTC."""
    who = finding.host if finding.gpu is None else f"{finding.host} gpu {finding.gpu}"
    parts = [f"{_how_slow(finding.slowdown)} {finding.reference}"]
    if np.isfinite(finding.since_s):
        parts[0] += f" since {datetime.fromtimestamp(finding.since_s, UTC):%H:%M:%S}"
    if finding.note:
        parts.append(finding.note)
    if finding.e_value is not None:
        parts += [
            _plural(finding.rounds),
            f"e-value {_short(finding.e_value)}",
            f"false-alarm budget {_short(finding.budget)}",
        ]
    return Verdict(
        host=finding.host,
        gpu=finding.gpu,
        slowdown=finding.slowdown,
        severity=finding.severity,
        evidence=f"{who}: {', '.join(parts)}",
        action=finding.action,
    )


def _how_slow(slowdown: float) -> str:
    if slowdown >= _TIMES_FROM:
        return f"{slowdown:.1f} times as slow as"
    percent = 100 * (slowdown - 1)
    return f"{percent:.{int(percent < 10)}f} % slower than"


def _plural(rounds: int) -> str:
    return f"{rounds} round" if rounds == 1 else f"{rounds} rounds"


def _short(number: float) -> str:
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
