"""An examination: checkups of all devices, compared with one another and with what is remembered of each. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from collectors.causes import UNKNOWN
from collectors.checkup import Checkup
from detectors.analysis import SlowGPUAnalysis
from detectors.readings import Device
from detectors.verdict import Verdict

__all__ = ["Condition", "Diagnosis", "Past", "examine", "remembered"]

Past = Mapping[str, Mapping[str, Sequence[float]]]
"""By UUID and probe: the fastest readings of earlier visits in seconds, oldest first."""

Condition = Literal["ok", "suspect", "slow", "faulty"]
_BY_GRAVITY: tuple[Condition, ...] = "ok", "suspect", "slow", "faulty"

VISITS = 20
VISITS_TO_JUDGE = 3
GPU_MIN_SLOWDOWN = 1.05
VIRTUAL_MIN_SLOWDOWN = 2.0  # virtual devices share the machine's cores and caches with whatever else runs
_VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is thought of one device.

    Attributes
    ----------
    condition
        ``faulty``: it computes wrongly or does not answer. ``slow``: slower than its peers, or than itself, beyond what
        one visit may show by chance. ``suspect``: it may be. Else ``ok``.
    reasons
        Why, a sentence each.
    """

    condition: Condition
    reasons: tuple[str, ...] = ()


def examine(checkups: Mapping[Device, Checkup], past: Past) -> dict[Device, Diagnosis]:
    """Judge each device; a class of devices (one model) is compared within itself."""
    found: dict[Device, list[tuple[Condition, str]]] = {device: [] for device in checkups}
    for device, checkup in checkups.items():
        found[device] += _faults(checkup)
        found[device] += _against_past(checkup, past.get(checkup.uuid, {}))
    for device, condition, reason in _against_peers(checkups):
        found[device].append((condition, reason))
    return {device: _diagnosis(reasons, checkups[device].cause) for device, reasons in found.items()}


def remembered(past: Past, checkups: Mapping[Device, Checkup]) -> dict[str, dict[str, list[float]]]:
    """Return the past with this visit added; of each probe the last 20 visits are kept."""
    kept = {uuid: {probe: list(seconds) for probe, seconds in probes.items()} for uuid, probes in past.items()}
    for checkup in checkups.values():
        if checkup.uuid:
            probes = kept.setdefault(checkup.uuid, {})
            for probe, seconds in checkup.seconds.items():
                probes[probe] = [*probes.get(probe, []), min(seconds)][-VISITS:]
    return kept


def _faults(checkup: Checkup) -> list[tuple[Condition, str]]:
    wrong = [("faulty", f"{probe}: {count} results are wrong") for probe, count in checkup.wrong.items()]
    return [*wrong, *([("faulty", checkup.trouble)] if checkup.trouble else [])]  # type: ignore[list-item]


def _against_past(checkup: Checkup, past: Mapping[str, Sequence[float]]) -> list[tuple[Condition, str]]:
    limit = _min_slowdown(checkup)
    told: list[tuple[Condition, str]] = []
    for probe, seconds in checkup.seconds.items():
        visits = past.get(probe, ())
        if len(visits) < VISITS_TO_JUDGE:
            continue
        slowdown = min(seconds) / statistics.median(visits)
        if slowdown > limit:
            # Twice the limit, because one visit is no history: a job that watches has many rounds to be sure.
            condition: Condition = "slow" if slowdown - 1 > 2 * (limit - 1) else "suspect"
            told.append((condition, f"{probe}: {_percent(slowdown)} slower than in its last {len(visits)} checkups"))
    return told


def _against_peers(checkups: Mapping[Device, Checkup]) -> list[tuple[Device, Condition, str]]:
    answering = {device: checkup for device, checkup in checkups.items() if checkup.seconds}
    limit = max(map(_min_slowdown, answering.values()), default=GPU_MIN_SLOWDOWN)
    analysis = SlowGPUAnalysis(min_slowdown=limit, groups={device: c.model for device, c in answering.items()})
    verdicts = analysis.check({device: checkup.seconds for device, checkup in answering.items()})
    return [
        (
            device,
            "suspect" if verdict.severity == "suspect" else "slow",
            f"{_without_name(verdict)}, most in {_worst_probe(device, answering)}",
        )
        for verdict in verdicts
        for device in answering
        if device[0] == verdict.host and verdict.gpu in (None, device[1])
    ]


def _without_name(verdict: Verdict) -> str:
    return verdict.evidence.partition(": ")[2] or verdict.evidence


def _worst_probe(device: Device, checkups: Mapping[Device, Checkup]) -> str:
    """Return the probe in which a device is furthest behind the middle of its class."""

    def slowdown(probe: str) -> float:
        peers = [
            c.seconds[probe] for c in checkups.values() if c.model == checkups[device].model and probe in c.seconds
        ]
        return min(checkups[device].seconds[probe]) / statistics.median(map(min, peers))

    return max(checkups[device].seconds, key=slowdown)


def _diagnosis(reasons: Sequence[tuple[Condition, str]], cause: str) -> Diagnosis:
    worst = max((condition for condition, _ in reasons), key=_BY_GRAVITY.index, default=_BY_GRAVITY[0])
    causes = [f"likely cause: {cause}"] if reasons and cause != UNKNOWN else []
    return Diagnosis(worst, (*(reason for _, reason in reasons), *causes))


def _min_slowdown(checkup: Checkup) -> float:
    return VIRTUAL_MIN_SLOWDOWN if checkup.model == _VIRTUAL else GPU_MIN_SLOWDOWN


def _percent(slowdown: float) -> str:
    return f"{slowdown - 1:.0%}"
