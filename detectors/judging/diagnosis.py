"""Diagnosis: compares device checks with one another and with each device's earlier checks. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from laggard.collectors.device import DeviceId
from laggard.collectors.device_check import DeviceCheck
from laggard.detectors import wording
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis

Past = Mapping[str, Mapping[str, Sequence[float]]]
"""By UUID and probe: the fastest reading of each earlier check in seconds, oldest first."""

Condition = Literal["ok", "unchecked", "suspect", "slow", "faulty"]
_BY_SEVERITY: tuple[Condition, ...] = "ok", "unchecked", "suspect", "slow", "faulty"

REMEMBERED_CHECKS = 20  # of a device, the newest
CHECKS_TO_JUDGE = 3  # the median of fewer can be a disturbed one
GPU_MIN_SLOWDOWN = 1.05  # as for the detector
VIRTUAL_MIN_SLOWDOWN = 2.0  # virtual devices share the machine's cores and caches with whatever else runs
_VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of one device."""

    # `faulty`: it computes wrong results, does not answer, or its driver reports a fault. `slow`: slower than its
    # peers, or than in earlier checks, by more than a single check may show by chance. `suspect`: possibly slow.
    # `unchecked`: the check failed, for a reason that says nothing about the device. Otherwise `ok`.
    condition: Condition
    reasons: tuple[str, ...] = ()  # one sentence for each finding


def diagnose(checks: Mapping[DeviceId, DeviceCheck], past: Past) -> dict[DeviceId, Diagnosis]:
    """Diagnose each device; devices are compared with those of the same model."""
    found: dict[DeviceId, list[tuple[Condition, str]]] = {device: [] for device in checks}
    for device, check in checks.items():
        found[device] += _faults(check)
        found[device] += _slower_than_before(check, past.get(check.uuid, {}))
    for device, condition, reason in _slower_than_peers(checks):
        found[device].append((condition, reason))
    return {device: _diagnosis(reasons, checks[device]) for device, reasons in found.items()}


def remembered(past: Past, checks: Mapping[DeviceId, DeviceCheck]) -> dict[str, dict[str, list[float]]]:
    """Return the past with these checks added; the last 20 readings of each probe are kept."""
    kept = {uuid: {probe: list(seconds) for probe, seconds in probes.items()} for uuid, probes in past.items()}
    for check in checks.values():
        if check.uuid:
            probes = kept.setdefault(check.uuid, {})
            for probe, seconds in check.seconds.items():
                probes[probe] = [*probes.get(probe, []), min(seconds)][-REMEMBERED_CHECKS:]
    return kept


def _faults(check: DeviceCheck) -> list[tuple[Condition, str]]:
    found: list[tuple[Condition, str]] = []
    found += [("faulty", f"{probe}: {count} results are wrong") for probe, count in check.wrong.items()]
    found += [("faulty", fault) for fault in (*check.faults, check.trouble) if fault]
    found += [("unchecked", check.failure)] if check.failure else []
    return found


def _slower_than_before(check: DeviceCheck, past: Mapping[str, Sequence[float]]) -> list[tuple[Condition, str]]:
    limit = _min_slowdown(check)
    reasons: list[tuple[Condition, str]] = []
    for probe, seconds in check.seconds.items():
        earlier = past.get(probe, ())
        if len(earlier) < CHECKS_TO_JUDGE:
            continue
        slowdown = min(seconds) / statistics.median(earlier)
        if slowdown > limit:
            # Twice the limit, because a single check is weak evidence: a detector in a job has many rounds.
            condition: Condition = "slow" if slowdown - 1 > 2 * (limit - 1) else "suspect"
            reasons.append((condition, f"{probe}: {_percent(slowdown)} slower than in its last {len(earlier)} checks"))
    return reasons


def _slower_than_peers(checks: Mapping[DeviceId, DeviceCheck]) -> list[tuple[DeviceId, Condition, str]]:
    answering = {device: check for device, check in checks.items() if check.seconds}
    limit = max(map(_min_slowdown, answering.values()), default=GPU_MIN_SLOWDOWN)
    analysis = SlowGPUAnalysis(min_slowdown=limit, groups={device: c.model for device, c in answering.items()})
    verdicts = analysis.check({device: check.seconds for device, check in answering.items()})
    return [
        (
            device,
            "suspect" if verdict.severity == "suspect" else "slow",
            f"{wording.finding(verdict.evidence)}, most in {_worst_probe(device, answering)}",
        )
        for verdict in verdicts
        for device in answering
        if device[0] == verdict.host and verdict.gpu in (None, device[1])
    ]


def _worst_probe(device: DeviceId, checks: Mapping[DeviceId, DeviceCheck]) -> str:
    """Return the probe in which a device is furthest behind the median of its model."""

    def slowdown(probe: str) -> float:
        peers = [c.seconds[probe] for c in checks.values() if c.model == checks[device].model and probe in c.seconds]
        return min(checks[device].seconds[probe]) / statistics.median(map(min, peers))

    return max(checks[device].seconds, key=slowdown)


def _diagnosis(reasons: Sequence[tuple[Condition, str]], check: DeviceCheck) -> Diagnosis:
    worst = max((condition for condition, _ in reasons), key=_BY_SEVERITY.index, default=_BY_SEVERITY[0])
    explains = check.cause.is_known and any(reason not in check.faults for _, reason in reasons)
    causes = [f"likely cause: {check.cause}"] if explains and check.cause.detail not in check.faults else []
    return Diagnosis(worst, (*(reason for _, reason in reasons), *causes))


def _min_slowdown(check: DeviceCheck) -> float:
    return VIRTUAL_MIN_SLOWDOWN if check.model == _VIRTUAL else GPU_MIN_SLOWDOWN


def _percent(slowdown: float) -> str:
    return f"{slowdown - 1:.0%}"
