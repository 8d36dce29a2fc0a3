"""Restarts for slow devices, and what they cost: days of generated incidents under several rules.

``python -m benchmarks detection --only economics`` prints the tables; the rule of laggard is the real one
(:class:`laggard.detectors.economics.incidents.Incidents`), asked at the moments at which it may change its mind.

A day has two faults, whose lengths follow what was published on fail-slow devices, and a phase of the program on one
rank every 10 to 30 minutes. A restart ends a fault, since the device is left out; it does not end a phase, which goes
on with the rank on its new device. Who knows the future restarts at once for a fault that will lose more than a restart
costs, and never for a phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.tables import table
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.incidents import Incidents
from laggard.detectors.economics.restart_cost import LEAST_COST_S, UNKNOWN_COST_S, RestartCost, share_lost
from laggard.detectors.economics.restart_decision import Tradeoff

__all__ = ["days", "intermittent"]

DAY_S = 86_400.0
VERDICT_S = 12.0  # from the first slow round to the verdict
SLOWDOWNS = (1.05, 1.1, 1.2, 1.5, 2.0, 10.0)
COSTS_S = (3.0, 30.0, 300.0, 1800.0)
PHASE_SLOWDOWN = 1.15
# Shares of the kinds of fault; medians and means of their lengths, in seconds; the longest.
_KINDS = ((0.3, 180.0, 588.0, 36_000.0), (0.6, 360.0, 1350.0, 36_000.0), (0.1, 21_600.0, 35_600.0, DAY_S))
PATTERNS = ((20.0, 180.0), (60.0, 300.0), (60.0, 1200.0))  # length and distance, in seconds


@dataclass(frozen=True, slots=True)
class Slow:
    """A time in which a device is slow; without a device, it is a phase of the program, which no restart ends."""

    begin_s: float
    length_s: float
    slowdown: float
    device: str = ""

    @property
    def share(self) -> float:
        """The share of the job's time that it loses."""
        return share_lost(self.slowdown)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a day lost, and its restarts."""

    lost_s: float
    restarts: int


Wait = Callable[[Slow, int], float]
"""How long after an incident's begin a rule restarts, in seconds, given the number of restarts before it."""
Rule = Callable[[float], Wait]
"""A rule, given what a restart costs."""


def day(random: np.random.Generator, slowdown: float) -> list[Slow]:
    """Return a day's faults, each on a device of its own, and phases, in order."""
    found = []
    for number, begin_s in enumerate(random.uniform(0, DAY_S, 2).tolist()):
        _, median_s, mean_s, longest_s = _KINDS[random.choice(len(_KINDS), p=[kind[0] for kind in _KINDS])]
        length_s = random.lognormal(math.log(median_s), math.sqrt(2 * math.log(mean_s / median_s)))
        found.append(Slow(begin_s, min(length_s, longest_s, DAY_S - begin_s), slowdown, f"device{number}"))
    now_s = random.uniform(600, 1800)
    while now_s < DAY_S:
        found.append(Slow(now_s, min(random.uniform(20, 120), DAY_S - now_s), PHASE_SLOWDOWN))
        now_s += random.uniform(600, 1800)
    return sorted(found, key=lambda slow: slow.begin_s)


def play(slows: Sequence[Slow], cost_s: float, wait: Wait) -> Outcome:
    """Play a day: a restart leaves the slow device out."""
    gone: set[str] = set()
    lost_s, restarts = 0.0, 0
    for slow in slows:
        if slow.device in gone:
            continue
        waited_s = wait(slow, restarts)
        if waited_s >= slow.length_s:
            lost_s += slow.share * slow.length_s
            continue
        lost_s += cost_s + slow.share * (waited_s if slow.device else slow.length_s)
        restarts += 1
        gone |= {slow.device} - {""}
    return Outcome(lost_s, restarts)


# ---------------------------------------------------------------------------------------------------------------------
# Rules


def clairvoyant(cost_s: float) -> Wait:
    """Return the rule of one who knows how long each incident lasts, and which are phases."""

    def wait_s(slow: Slow, _: int) -> float:
        return 0.0 if slow.device and slow.share * slow.length_s > cost_s else math.inf

    return wait_s


def after(least_lost_s: Callable[[float], float]) -> Rule:
    """Return the rule that restarts once an incident has lost so much, given the cost; not before the verdict."""
    return lambda cost_s: lambda slow, _: max(VERDICT_S, least_lost_s(cost_s) / slow.share)


def laggards(believed_s: Callable[[float], float | None]) -> Rule:
    """Return laggard's rule, with what it takes a restart to cost."""

    def rule(cost_s: float) -> Wait:
        believed = believed_s(cost_s)
        cost = RestartCost(UNKNOWN_COST_S if believed is None else max(LEAST_COST_S, believed))
        tradeoff = Tradeoff(cost=cost, is_measured=believed is not None)
        incidents = Incidents()

        def wait_s(slow: Slow, restarts: int) -> float:
            # A phase is on whichever device has its place.
            device, place = (slow.device, f"of {slow.device}") if slow.device else (f"new{restarts}", "0/0")
            return _asked_after_s(incidents, slow, tradeoff, device, place)

        return wait_s

    return rule


def _asked_after_s(incidents: Incidents, slow: Slow, tradeoff: Tradeoff, device: str, place: str) -> float:
    """Return how long after an incident's begin laggard's rule restarts for it; infinite: never."""
    if slow.length_s <= VERDICT_S:
        return math.inf
    subject, end_s, now_s = (device, "0"), slow.begin_s + slow.length_s, slow.begin_s + VERDICT_S
    episode = Episode(slow.begin_s, slow.slowdown, slow.share)
    incidents.begin(subject, slow.slowdown, episode, now_s, identity=device, place=place)
    while not (decision := incidents.decide(subject, tradeoff, now_s)).restart:
        next_s = now_s + decision.in_s + 1e-6
        if next_s >= end_s:
            incidents.advance({subject: slow.slowdown}, end_s)
            incidents.advance({subject: None}, end_s)
            return math.inf
        now_s = next_s
        incidents.advance({subject: slow.slowdown}, now_s)
    incidents.forget_hosts(frozenset(), now_s)  # its node is left out
    return now_s - slow.begin_s


RULES: dict[str, Rule] = {
    "laggard": laggards(lambda cost_s: cost_s),
    "at once": after(lambda _: 0.0),
    "break-even": after(lambda cost_s: cost_s),
    "never": after(lambda _: math.inf),
    "laggard, cost / 3": laggards(lambda cost_s: cost_s / 3),
    "laggard, cost x 3": laggards(lambda cost_s: cost_s * 3),
    "laggard, cost unknown": laggards(lambda _: None),
}


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def days(trials: int) -> Iterator[str]:
    """Compare the rules over days: loss over that of one who knows the future, and restarts a day."""
    rows = []
    means: dict[str, list[float]] = {name: [] for name in RULES}
    worst = dict.fromkeys(RULES, 0.0)
    for slowdown, cost_s in product(SLOWDOWNS, COSTS_S):
        random = np.random.default_rng(25)
        made = [day(random, slowdown) for _ in range(trials)]
        best_s = np.array([play(each, cost_s, clairvoyant(cost_s)).lost_s for each in made])
        cells = []
        for name, rule in RULES.items():
            outcomes = [play(each, cost_s, rule(cost_s)) for each in made]
            lost_s = np.array([each.lost_s for each in outcomes])
            means[name].append(lost_s.sum() / best_s.sum())
            worst[name] = max(worst[name], float((lost_s / best_s).max()))
            cells.append(f"{means[name][-1]:.2f} ({sum(each.restarts for each in outcomes) / trials:.1f})")
        rows.append([f"{slowdown:g}", f"{cost_s:g} s", f"{best_s.mean():.0f} s", *cells])
    yield from table(["slowdown", "restart costs", "best, a day", *RULES], rows)
    yield ""
    shown = [[name, f"{min(means[name]):.2f} to {max(means[name]):.2f}", f"{worst[name]:.2f}"] for name in RULES]
    yield from table(["rule", "means of all cells", "worst single day"], shown)


def intermittent() -> Iterator[str]:
    """Compare what a day loses by incidents that come again on one device, or with one rank."""
    rules = {name: RULES[name] for name in ("never", "at once", "break-even", "laggard")}
    rows = []
    for (length_s, every_s), slowdown, cost_s in product(PATTERNS, (1.1, 1.5, 2.0), (30.0, 300.0)):
        begins = np.arange(every_s, DAY_S, every_s).tolist()
        fault, phase = ([Slow(at, length_s, slowdown, device) for at in begins] for device in ("device", ""))
        outcomes = [play(fault, cost_s, rule(cost_s)) for rule in rules.values()]
        outcomes.append(play(phase, cost_s, RULES["laggard"](cost_s)))
        shown = [f"{each.lost_s:,.0f} s ({each.restarts})" for each in outcomes]
        rows.append([f"{length_s:g} s every {every_s / 60:g} min", f"{slowdown:g}", f"{cost_s:g} s", *shown])
    yield from table(["pattern", "slowdown", "restart costs", *rules, "laggard, if it is a phase"], rows)
