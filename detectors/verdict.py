"""Verdicts: severity, action and likely cause of a finding against a device or node, and the text that explains it."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from laggard.collectors.causes import UNKNOWN

if TYPE_CHECKING:
    from laggard.collectors.device import DeviceId
    from laggard.detectors.restart_cost import RestartCost
    from laggard.detectors.thresholds import Thresholds

__all__ = [
    "Action",
    "Finding",
    "Severity",
    "Terms",
    "Verdict",
    "how_slow",
    "merged_by_node",
    "peers",
    "plural",
    "verdict_of",
    "with_cause",
]

Severity = Literal["suspect", "slow", "very slow", "faulty", "well again"]
Action = Literal["report", "restart"]

_TIMES_FROM = 3.0  # "15.4 times as slow" reads better than "1440 % slower"
_SEVERITIES: tuple[Severity, ...] = ("suspect", "slow", "very slow")


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """A detector's finding against one device or one whole node, as it is stored and printed.

    Attributes
    ----------
    host
        Host name of the node.
    gpu
        The device's name on its node, as text; ``None`` accuses the whole node.
    slowdown
        Reading divided by its reference: 1.2 is 20 % slower.
    severity
        ``suspect``, ``slow`` or ``very slow``; ``faulty`` if it computes wrong results; ``well again`` if it was slow
        and is no longer.
    evidence
        One sentence with the numbers that the verdict is based on.
    cause
        The likely cause in a few words, or ``unknown``.
    action
        ``restart`` asks for a relaunch without the node, ``report`` does not.
    own_past
        Whether it has become slower than it was; if not, it may have been so from the start.
    at_times
        Whether it is slow again and again, and well in between.
    """

    host: str
    gpu: str | None
    slowdown: float
    severity: Severity
    evidence: str
    cause: str = "unknown"
    action: Action = "report"
    own_past: bool = False
    at_times: bool = False

    def __repr__(self) -> str:
        return f"<Verdict: {self.evidence} ({self.severity}, likely cause: {self.cause}, action: {self.action})>"

    @classmethod
    def of_fault(cls, host: str, gpu: str, what: str) -> Verdict:
        """Return the verdict on a device that computes wrong results; that is certain, so no evidence is weighed."""
        return cls(host, gpu, math.nan, "faulty", f"{host} gpu {gpu}: {what}", action="restart")

    def to_json(self) -> str:
        """Return the verdict as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Verdict:
        """Parse the text that :meth:`to_json` returned."""
        return cls(**json.loads(text))


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
        parts[0] += f" since {_moment(finding.since_s, finding.now_s)}"
    if finding.note:
        parts.append(finding.note)
    if finding.e_value is not None:
        parts += [
            plural(finding.rounds),
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
        own_past=finding.own_past,
        at_times=finding.at_times,
    )


def _moment(time_s: float, now_s: float) -> str:
    """Return the time of day, after its date if that is not today's."""
    moment = datetime.fromtimestamp(time_s, UTC)
    is_today = math.isfinite(now_s) and moment.date() == datetime.fromtimestamp(now_s, UTC).date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"


def how_slow(slowdown: float) -> str:
    """Return a slowdown before its reference: ``9.8 times as slow as``, ``12 % slower than``."""
    if slowdown >= _TIMES_FROM:
        return f"{slowdown:.1f} times as slow as"
    percent = 100 * (slowdown - 1)
    return f"{percent:.{int(percent < 10)}f} % slower than"


def peers(number: int) -> str:
    """Return a number of peers with its noun: ``only peer``, ``3 peers``."""
    return "only peer" if number == 1 else f"{number} peers"


def plural(rounds: int) -> str:
    """Return a number of rounds with its noun."""
    return f"{rounds} round" if rounds == 1 else f"{rounds} rounds"


def _short(number: float) -> str:
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def with_cause(verdict: Verdict, causes: Mapping[DeviceId, str]) -> Verdict:
    """Return the verdict with its likely cause; ``causes`` are by device."""
    if verdict.gpu is not None:
        return replace(verdict, cause=causes.get((verdict.host, verdict.gpu), UNKNOWN))
    of_node = [cause for (host, _), cause in causes.items() if host == verdict.host]
    kinds = Counter(_kind(cause) for cause in of_node if cause != UNKNOWN)
    if not kinds:
        return verdict
    kind, count = kinds.most_common(1)[0]
    cause = next(cause for cause in of_node if _kind(cause) == kind)
    return replace(verdict, cause=f"{cause} (as on {count} of its {len(of_node)} devices)")


def _kind(cause: str) -> str:
    return cause.partition(":")[0]
