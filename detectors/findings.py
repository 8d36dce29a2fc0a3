"""From evidence to verdicts: severity, device or whole node, action, and the sentence that explains it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from detectors.verdict import Action, Severity, Verdict

__all__ = ["NODE_SHARE", "Finding", "merged_by_node", "rank_of", "verdict_of"]

NODE_SHARE = 0.75  # of a node's devices must be slow for the verdict to name the node

_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known against one device or node.

    Attributes
    ----------
    reference
        What it was compared with: ``its past`` or ``its 15 peers``.
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
    rounds: int
    e_value: float | None
    since_s: float
    budget: float
    note: str = ""


def rank_of(severity: Severity, action: Action) -> int:
    """Order findings: a higher rank is worth a new verdict, 0 is none."""
    return 1 + 2 * _SEVERITIES.index(severity) + (action == "restart")


def merged_by_node(findings: Iterable[Finding], devices_of: dict[str, int]) -> list[Finding]:
    """Replace the findings against most devices of a node (of two or more) by one against the node."""
    by_host: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_host[finding.host].append(finding)
    merged = []
    for host, found in by_host.items():
        if devices_of[host] > 1 and len(found) >= NODE_SHARE * devices_of[host]:
            merged.append(_of_node(found, devices_of[host]))
        else:
            merged.extend(found)
    return merged


def _of_node(found: list[Finding], devices: int) -> Finding:
    typical = sorted(found, key=lambda finding: finding.slowdown)[(len(found) - 1) // 2]
    ranks = [rank_of(finding.severity, finding.action) for finding in found]
    worst = found[ranks.index(max(ranks))]
    since_s = float(np.fmin.reduce([finding.since_s for finding in found]))
    return replace(
        typical,
        gpu=None,
        severity=worst.severity,
        action=worst.action,
        since_s=since_s,
        e_value=worst.e_value,
        rounds=max(finding.rounds for finding in found),
        note=f"{len(found)} of its {devices} devices",
    )


def verdict_of(finding: Finding) -> Verdict:
    """Put a finding into words: one sentence with its numbers, the time of day in UTC."""
    who = finding.host if finding.gpu is None else f"{finding.host} gpu {finding.gpu}"
    parts = [f"{100 * (finding.slowdown - 1):.3g} % slower than {finding.reference}"]
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


def _plural(rounds: int) -> str:
    return f"{rounds} round" if rounds == 1 else f"{rounds} rounds"


def _short(number: float) -> str:
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
