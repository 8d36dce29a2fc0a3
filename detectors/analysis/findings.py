"""What severity and action the evidence against a device or node amounts to, and when all of a node is accused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.thresholds import VERY_SLOW
from laggard.detectors.verdict import Evidence, Severity, Verdict

_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")
TOP_RANK = 2 * len(_SEVERITIES)  # nothing is said after it


def verdict_of(device: tuple[str, str | None], found: Slow, *, sure: bool, own_past: bool = False) -> Verdict:
    """Return a verdict with its severity and action; ``sure``: whether it is certain that the device is slow."""
    severity = _severity_of(found.slowdown) if sure else "suspect"
    evidence = Evidence(*device, found, own_past)
    return Verdict(*device, found.slowdown, severity, evidence, action="restart" if sure else "report")


def _severity_of(slowdown: float) -> Severity:
    return "very slow" if slowdown >= VERY_SLOW else "slow"


def rank_of(verdict: Verdict) -> int:
    """Return the order of verdicts, from 1: a higher rank than before is worth a new one."""
    step = verdict.evidence.own_past if verdict.severity == "suspect" else verdict.action == "restart"
    return 1 + 2 * _SEVERITIES.index(verdict.severity) + step


def merged_by_node(verdicts: Iterable[Verdict], devices_of: Mapping[str, int], min_slowdown: float) -> list[Verdict]:
    """If there are verdicts against all devices of a node, two or more, merge them into one against the node."""
    # They stay apart if some devices are slow but half of them by less than matters: then the node as a whole is not.
    by_host: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_host[verdict.host].append(verdict)
    merged = []
    for host, found in by_host.items():
        node = _of_node(found, min_slowdown) if 1 < len(found) == devices_of[host] else None
        merged += found if node is None else [node]
    return merged


def _of_node(verdicts: list[Verdict], min_slowdown: float) -> Verdict | None:
    typical = sorted(verdicts, key=lambda verdict: verdict.slowdown)[(len(verdicts) - 1) // 2]
    worst = max(verdicts, key=rank_of)
    severity = worst.severity
    if severity != "suspect":
        if typical.slowdown < min_slowdown:
            return None
        severity = _severity_of(typical.slowdown)
    found = [slow_of(verdict) for verdict in verdicts]
    whole = replace(
        slow_of(typical),
        rounds=max(each.rounds for each in found),
        jobs=slow_of(worst).jobs,
        since_s=min((each.since_s for each in found if each.since_s is not None), default=None),
        n_devices=len(found),
    )
    evidence = Evidence(typical.host, None, whole, worst.evidence.own_past)
    return replace(typical, gpu=None, severity=severity, action=worst.action, evidence=evidence)


def slow_of(verdict: Verdict) -> Slow:
    """Return how slow the device is that a verdict of the analysis is about."""
    if not isinstance(verdict.evidence.found, Slow):
        raise TypeError(f"{verdict!r} is not about a slow device")
    return verdict.evidence.found
