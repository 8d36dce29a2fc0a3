"""Restarts for slow devices, and what they cost: days of generated incidents under several rules.

``python -m benchmarks detection --only economics`` prints the tables; the rule of laggard is the real one
(:class:`laggard.detectors.economics.incidents.Incidents`), asked at the moments at which it may change its mind.

A day has two faults, whose lengths follow what was published on fail-slow devices, and a phase of the program on one
rank every 10 to 30 minutes. A restart ends a fault, since the device is left out; it does not end a phase, which goes
on with the rank on its new device. Who knows the future restarts at once for a fault that will lose more than a restart
costs, and never for a phase. Harder days (``benchmarks/hard_days.py``) have other incidents, reserves or costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.tables import table
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.incidents import Incidents
from laggard.detectors.economics.restart_cost import (
    LEAST_COST_S,
    UNKNOWN_START_S,
    UNKNOWN_WORK_S,
    RestartCost,
    share_lost,
)
from laggard.detectors.economics.restart_decision import Tradeoff

__all__ = [
    "DAY_S",
    "RULES",
    "VERDICT_S",
    "Rule",
    "Slow",
    "Wait",
    "World",
    "days",
    "fault_s",
    "intermittent",
    "laggards",
    "phases",
    "play",
]

DAY_S = 86_400.0
VERDICT_S = 12.0  # from the first slow round to the verdict
N_NODES = 16
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
    place: str = "0/0"  # the place of a phase in the launch
    then_s: tuple[float, ...] = ()  # for how long the devices are slow from the start that take its place in turn

    @property
    def share(self) -> float:
        """The share of the job's time that it loses."""
        return share_lost(self.slowdown)


@dataclass(frozen=True, slots=True)
class World:
    """What a restart costs, and how many nodes are in reserve."""

    start_s: float
    saves_s: tuple[float, ...] = ()  # when checkpoints were written, from 0 on; none: no work is lost
    n_reserve: int | None = None  # `None`: as many as are needed

    def cost_s(self, now_s: float) -> float:
        """Return what a restart costs at some moment."""
        newest = int(np.searchsorted(self.saves_s, now_s, side="right")) - 1
        return self.start_s + (now_s - self.saves_s[newest] if self.saves_s else 0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a day lost, and its restarts."""

    lost_s: float
    restarts: int


Wait = Callable[[Slow, int], float]
"""How long after an incident's begin a rule restarts, in seconds, given the number of restarts before it."""
Rule = Callable[[World], Wait]


def fault_s(random: np.random.Generator) -> float:
    """Return the length of a fault."""
    _, median_s, mean_s, longest_s = _KINDS[random.choice(len(_KINDS), p=[kind[0] for kind in _KINDS])]
    return min(random.lognormal(math.log(median_s), math.sqrt(2 * math.log(mean_s / median_s))), longest_s)


def phases(random: np.random.Generator) -> list[Slow]:
    """Return a day's phases."""
    found, now_s = [], random.uniform(600, 1800)
    while now_s < DAY_S:
        found.append(Slow(now_s, min(random.uniform(20, 120), DAY_S - now_s), PHASE_SLOWDOWN))
        now_s += random.uniform(600, 1800)
    return found


def day(random: np.random.Generator, slowdown: float) -> list[Slow]:
    """Return a day's faults, each on a device of its own, and phases, in order."""
    begins = enumerate(random.uniform(0, DAY_S, 2).tolist())
    found = [Slow(at, min(fault_s(random), DAY_S - at), slowdown, f"device{number}") for number, at in begins]
    return sorted(found + phases(random), key=lambda slow: slow.begin_s)


def play(slows: Sequence[Slow], world: World, wait: Wait) -> Outcome:
    """Play a day: a restart leaves the slow device out, and a node without a replacement is missed for its rest."""
    gone: set[str] = set()
    lost_s, restarts = 0.0, 0
    for slow in (each for each in slows if each.device not in gone):
        now_s = slow.begin_s
        for number, length_s in enumerate((slow.length_s, *slow.then_s)):
            name = slow.device and f"{slow.device}{'+' * number}"
            waited_s = wait(replace(slow, begin_s=now_s, length_s=length_s, device=name), restarts)
            if waited_s >= length_s:
                lost_s += slow.share * length_s
                break
            lost_s += slow.share * (waited_s if slow.device else length_s)
            now_s += waited_s
            lost_s += world.cost_s(now_s)
            if restarts == world.n_reserve or (world.n_reserve is not None and restarts > world.n_reserve):
                lost_s += (DAY_S - now_s) / N_NODES
            restarts += 1
            if not slow.device:
                break
            gone.add(slow.device)
    return Outcome(lost_s, restarts)


# ---------------------------------------------------------------------------------------------------------------------
# Rules


def clairvoyant(slows: Sequence[Slow], world: World) -> float:
    """Return what one loses who knows how long each incident lasts, and which are phases."""
    lost_s, by_device = 0.0, dict[str, list[Slow]]()
    for slow in slows:
        lost_s += 0.0 if slow.device else slow.share * slow.length_s
        if slow.device:
            by_device.setdefault(slow.device, []).append(slow)
    if world.n_reserve is None:
        return lost_s + sum(_least_s(each, world) for each in by_device.values())
    choices = product((0.0, math.inf), repeat=len(by_device))  # leave a device out at its first incident, or never
    plans = [dict(zip(by_device, choice, strict=True)) for choice in choices]
    return min(play(slows, world, lambda slow, _, plan=plan: plan.get(slow.device, math.inf)).lost_s for plan in plans)  # type: ignore[misc]


def _least_s(slows: Sequence[Slow], world: World) -> float:
    """Return the least that a device can lose: by leaving it out at a begin or after a checkpoint, or not at all."""
    share, lost_s, least_s, after_s = slows[0].share, 0.0, math.inf, 0.0
    for length_s in reversed(slows[0].then_s):
        after_s = min(share * length_s, world.start_s + after_s)
    for slow in slows:
        end_s = slow.begin_s + slow.length_s
        for at in (slow.begin_s, *(save_s for save_s in world.saves_s if slow.begin_s < save_s < end_s)):
            least_s = min(least_s, lost_s + share * (at - slow.begin_s) + world.cost_s(at) + after_s)
        lost_s += share * slow.length_s
    return min(lost_s, least_s)


def after(least_lost_s: Callable[[float], float]) -> Rule:
    """Return the rule that restarts once an incident has lost so much, given the cost; not before the verdict."""
    return lambda world: (
        lambda slow, _: max(VERDICT_S, least_lost_s(world.cost_s(slow.begin_s + VERDICT_S)) / slow.share)
    )


def laggards(believed_s: Callable[[World, float, int], float], *, is_stated: bool = False) -> Rule:
    """Return laggard's rule, with what it takes a restart to cost at some moment, after so many others.

    ``is_stated``: what it takes the first one to cost was only stated.
    """

    def rule(world: World) -> Wait:
        incidents = Incidents()

        def wait_s(slow: Slow, restarts: int) -> float:
            # A phase is on whichever device has its place.
            device, place = (slow.device, f"of {slow.device}") if slow.device else (f"new{restarts}", slow.place)
            left = None if world.n_reserve is None else max(0, world.n_reserve - restarts)

            def tradeoff(now_s: float) -> Tradeoff:
                cost = RestartCost(max(LEAST_COST_S, believed_s(world, now_s, restarts)))
                return Tradeoff(cost=cost, n_nodes=N_NODES, n_reserve=left, is_stated=is_stated and not restarts)

            steps_s = 60.0 if world.saves_s else math.inf
            return _asked_after_s(incidents, slow, tradeoff, device, place, steps_s)

        return wait_s

    return rule


def _asked_after_s(
    incidents: Incidents, slow: Slow, tradeoff: Callable[[float], Tradeoff], device: str, place: str, steps_s: float
) -> float:
    """Return how long after an incident's begin laggard's rule restarts for it; infinite: never."""
    if slow.length_s <= VERDICT_S:
        return math.inf
    subject, end_s, now_s = (device, "0"), slow.begin_s + slow.length_s, slow.begin_s + VERDICT_S
    episode = Episode(slow.begin_s, slow.slowdown, slow.share)
    incidents.begin(subject, slow.slowdown, episode, now_s, identity=device, place=place)
    while not (decision := incidents.decide(subject, tradeoff(now_s), now_s)).restart:
        next_s = now_s + min(decision.in_s, steps_s) + 1e-6
        if next_s >= end_s:
            incidents.advance({subject: slow.slowdown}, end_s)
            incidents.advance({subject: None}, end_s)
            return math.inf
        now_s = next_s
        incidents.advance({subject: slow.slowdown}, now_s)
    incidents.forget_hosts(frozenset(), now_s)  # its node is left out
    return now_s - slow.begin_s


def stated(factor: float) -> Rule:
    """Return laggard's rule for a cost that is stated, wrong by a factor, until the first restart has shown it."""
    return laggards(lambda world, now_s, restarts: world.cost_s(now_s) * (1 if restarts else factor), is_stated=True)


RULES: dict[str, Rule] = {
    "laggard": laggards(lambda world, now_s, _: world.cost_s(now_s)),
    "at once": after(lambda _: 0.0),
    "break-even": after(lambda cost_s: cost_s),
    "never": after(lambda _: math.inf),
    "laggard, cost stated": stated(1),
    "laggard, stated / 5": stated(1 / 5),
    "laggard, stated x 5": stated(5),
    "laggard, cost unknown": laggards(lambda *_: UNKNOWN_START_S + UNKNOWN_WORK_S),
}


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def days(trials: int) -> Iterator[str]:
    """Compare the rules over days: loss over that of one who knows the future, and restarts a day."""
    rows = []
    means: dict[str, list[float]] = {name: [] for name in RULES}
    worst = dict.fromkeys(RULES, 0.0)
    for slowdown, cost_s in product(SLOWDOWNS, COSTS_S):
        random, world = np.random.default_rng(25), World(cost_s)
        made = [day(random, slowdown) for _ in range(trials)]
        best_s = np.array([clairvoyant(each, world) for each in made])
        cells = []
        for name, rule in RULES.items():
            outcomes = [play(each, world, rule(world)) for each in made]
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
        begins, world = np.arange(every_s, DAY_S, every_s).tolist(), World(cost_s)
        fault, phase = ([Slow(at, length_s, slowdown, device) for at in begins] for device in ("device", ""))
        outcomes = [play(fault, world, rule(world)) for rule in rules.values()]
        outcomes.append(play(phase, world, RULES["laggard"](world)))
        shown = [f"{each.lost_s:,.0f} s ({each.restarts})" for each in outcomes]
        rows.append([f"{length_s:g} s every {every_s / 60:g} min", f"{slowdown:g}", f"{cost_s:g} s", *shown])
    yield from table(["pattern", "slowdown", "restart costs", *rules, "laggard, if it is a phase"], rows)
