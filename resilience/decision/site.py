"""What a site remembers of its nodes, and which of them are suspects. Pure.

A few nodes of a cluster fail many times as often as the others, for weeks ("Revisiting Reliability in Large-Scale ML
Research Clusters", HPCA'25, calls them lemons). If such a node fails ``TIMES`` as often as a good one, a failure
multiplies the odds that a node is one by ``TIMES``, and each hour of use by ``exp(-(TIMES - 1) * RATE_PER_HOUR)``: the
likelihood ratio of two Poisson processes. A node is a suspect while its odds are above even.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from laggard.resilience.decision.roster import MEMORY_S

SHARE = 0.02  # of the nodes, before anything is known of one
TIMES = 10.0
RATE_PER_HOUR = 6.5e-3 / 24  # failures of a node that is in use: of RSC-1, in the same paper

Kind = Literal["failed", "ran", "cleared", "pinned"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one job, or an operator, has noted about a node."""

    host: str
    time_s: float  # Unix time
    kind: Kind
    job: str = ""
    why: str = ""
    hours: float = 0.0  # of use, in a job that ran on it


@dataclass(frozen=True, slots=True)
class Standing:
    """How a node stands with the site."""

    host: str
    odds: float  # that it is one of the few; infinite if an operator says so
    hours: float  # of use that are remembered
    failures: tuple[Sighting, ...] = field(default=())  # those that count, the newest last

    @property
    def is_suspect(self) -> bool:
        """Whether a job should rather use another node."""
        return self.odds > 1

    @property
    def chance(self) -> float:
        """The chance that it is one of the few, 0 to 1."""
        return 1.0 if math.isinf(self.odds) else self.odds / (1 + self.odds)


def standings(sightings: Iterable[Sighting], now_s: float) -> list[Standing]:
    """Return how each node stands, the worst first; what is older than four weeks, or of the future, does not count."""
    by_host: dict[str, list[Sighting]] = {}
    for each in sorted(sightings, key=lambda each: each.time_s):
        if now_s - MEMORY_S < each.time_s <= now_s:
            by_host.setdefault(each.host, []).append(each)
    found = [_standing(host, noted) for host, noted in by_host.items()]
    return sorted(found, key=lambda each: (-each.odds, each.host))


def _standing(host: str, noted: list[Sighting]) -> Standing:
    cleared = max((number for number, each in enumerate(noted) if each.kind == "cleared"), default=-1)
    noted = noted[cleared + 1 :]
    # A job counts once: what it went through says little about the next, and nobody can say a thing a hundredfold.
    failures = {each.job: each for each in noted if each.kind == "failed"}
    hours = sum(each.hours for each in noted if each.kind == "ran")
    pins = [each for each in noted if each.kind == "pinned"]
    log_odds = math.log(SHARE / (1 - SHARE)) + len(failures) * math.log(TIMES) - (TIMES - 1) * RATE_PER_HOUR * hours
    newest_last = sorted([*failures.values(), *pins], key=lambda each: each.time_s)
    return Standing(host, math.inf if pins else math.exp(log_odds), hours, tuple(newest_last))
