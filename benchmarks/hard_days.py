"""Days that are hard for a rule on restarts: short incidents, devices that flap, bad or few reserves, own checkpoints.

They are part of ``python -m benchmarks detection --only economics``; all but the first have phases as every day has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.economics import (
    DAY_S,
    RULES,
    VERDICT_S,
    Rule,
    Slow,
    Wait,
    World,
    clairvoyant,
    day,
    fault_s,
    laggards,
    phases,
    play,
)
from benchmarks.tables import table
from laggard.detectors.economics.restart_cost import UNKNOWN_WORK_S

__all__ = ["bounds", "hard_days", "own_checkpoints"]

SLOWDOWNS = (1.1, 1.5, 2.0, 10.0)
COSTS_S = (30.0, 300.0, 1800.0)
START_S = 65.0  # a restart of a program with checkpoints of its own, without the work that is lost
INTERVALS_S = (300.0, 900.0, 1800.0, 3600.0)
_SEED = 2900
_SHORT_S = 150.0  # the mean
_MAY_LOSE_S = (0.0, *np.geomspace(10, 10_000, 13).tolist(), math.inf)

Make = Callable[[np.random.Generator, float], list[Slow]]


def _faults(random: np.random.Generator, slowdown: float, count: int, bad: float = 0.0) -> list[Slow]:
    """Return faults, each on a device of its own, whose replacement is slow from the start with a probability."""
    found = []
    for number, at in enumerate(random.uniform(0, DAY_S, count).tolist()):
        then = [fault_s(random) for _ in range(random.geometric(1 - bad) - 1)]
        length_s, then_s = min(fault_s(random), DAY_S - at), tuple(min(each, DAY_S - at) for each in then)
        found.append(Slow(at, length_s, slowdown, f"device{number}", then_s=then_s))
    return found


def _short(random: np.random.Generator, slowdown: float) -> list[Slow]:
    begins = enumerate(random.uniform(0, DAY_S, 40).tolist())
    return [
        Slow(at, min(random.exponential(_SHORT_S), DAY_S - at), slowdown, f"device{number}") for number, at in begins
    ]


def _flapping(random: np.random.Generator, slowdown: float, devices: Sequence[str], *, bad: bool = False) -> list[Slow]:
    """Return devices that are slow in turn, from some moment on; if the reserve is as bad, their replacements too."""
    mean_s = math.exp(random.uniform(math.log(20), math.log(600)))
    gap_s, now_s = mean_s * random.uniform(0, 4), random.uniform(0, DAY_S / 2)
    found: list[Slow] = []
    while now_s < DAY_S:
        name = devices[len(found) % len(devices)]
        length_s = min(random.exponential(mean_s), DAY_S - now_s)
        found.append(Slow(now_s, length_s, slowdown, "" if bad else name, place=name))
        now_s += length_s + random.exponential(gap_s)
    return found


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Make
    n_reserve: int | None = None
    has_phases: bool = True

    def draw(self, random: np.random.Generator, slowdown: float) -> list[Slow]:
        found = self.make(random, slowdown) + (phases(random) if self.has_phases else [])
        return sorted(found, key=lambda slow: slow.begin_s)


def _pair(random: np.random.Generator, slowdown: float) -> list[Slow]:
    return _flapping(random, slowdown, ("a", "b"))


KINDS: dict[str, _Kind] = {
    "four faults, no phases": _Kind(lambda random, slowdown: _faults(random, slowdown, 4), has_phases=False),
    "40 short incidents": _Kind(_short),
    "one device that flaps": _Kind(lambda random, slowdown: _flapping(random, slowdown, ("a",))),
    "two that flap in turn": _Kind(_pair),
    "two that flap in turn, no phases": _Kind(_pair, has_phases=False),
    "two that flap, one in reserve": _Kind(_pair, n_reserve=1),
    "two whose replacements flap too": _Kind(lambda r, slowdown: _flapping(r, slowdown, ("a", "b"), bad=True)),
    "two faults, one in reserve": _Kind(lambda random, slowdown: _faults(random, slowdown, 2), n_reserve=1),
    "two faults, none in reserve": _Kind(lambda random, slowdown: _faults(random, slowdown, 2), n_reserve=0),
    "four faults, half the reserve slow": _Kind(lambda random, slowdown: _faults(random, slowdown, 4, bad=0.5)),
}


def _shown(ratios: Sequence[tuple[float, float]]) -> str:
    """Return the mean of all cells, the worst of them, and the worst day, given each cell's mean and worst day."""
    means = [mean for mean, _ in ratios]
    return f"{np.mean(means):.2f}/{max(means):.2f}/{max(worst for _, worst in ratios):.1f}"


def _best_s(made: Sequence[list[Slow]], worlds: Sequence[World]) -> NDArray[np.float64]:
    """Return what one loses on each day who knows the future."""
    return np.array([clairvoyant(slows, world) for slows, world in zip(made, worlds, strict=True)])


def _ratios(
    made: Sequence[list[Slow]], worlds: Sequence[World], best_s: NDArray[np.float64], rule: Rule
) -> tuple[float, float]:
    """Return what a rule loses over the best: on average, and on the worst day."""
    days = zip(made, worlds, strict=True)
    lost_s = np.array([play(slows, world, rule(world)).lost_s for slows, world in days])
    return float(lost_s.sum() / best_s.sum()), float((lost_s / best_s).max())


def hard_days(trials: int) -> Iterator[str]:
    """Compare the rules on each kind of day."""
    rules = {name: rule for name, rule in RULES.items() if name != "at once"}
    rows = []
    for what, kind in KINDS.items():
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in rules}
        for slowdown, cost_s in product(SLOWDOWNS, COSTS_S):
            random, world = np.random.default_rng(_SEED), World(cost_s, n_reserve=kind.n_reserve)
            made = [kind.draw(random, slowdown) for _ in range(trials)]
            best_s = _best_s(made, [world] * trials)
            for name, rule in rules.items():
                found[name].append(_ratios(made, [world] * trials, best_s, rule))
        rows.append([what, *(_shown(each) for each in found.values())])
    yield from table(["a day with", *rules], rows)


def own_checkpoints(trials: int) -> Iterator[str]:
    """Compare what a program tells of its own checkpoints; without a word, its start alone was the cost before."""
    rules: dict[str, Rule] = {
        "`checkpointed`": RULES["laggard"],
        **{f"{work_s:g} s assumed": _assumed(work_s) for work_s in (0.0, 300.0, UNKNOWN_WORK_S, 1200.0)},
        "half the interval": laggards(_half_the_interval),
    }
    rows = []
    for interval_s in INTERVALS_S:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in rules}
        for slowdown in SLOWDOWNS:
            random = np.random.default_rng(_SEED)
            made = [day(random, slowdown) for _ in range(trials)]
            begins = [random.uniform(0, interval_s) for _ in made]
            worlds = [World(START_S, (0.0, *np.arange(at, DAY_S, interval_s).tolist())) for at in begins]
            best_s = _best_s(made, worlds)
            for name, rule in rules.items():
                found[name].append(_ratios(made, worlds, best_s, rule))
        rows.append([f"{interval_s / 60:g} min", *(_shown(each) for each in found.values())])
    yield from table(["a checkpoint every", *rules], rows)


def _half_the_interval(world: World, now_s: float, _: int) -> float:
    """Return what a restart costs if all checkpoints are seen, but only as phases: then half an interval is lost."""
    seen = [save_s for save_s in world.saves_s[1:] if save_s <= now_s]
    return world.start_s + ((seen[-1] - seen[-2]) / 2 if len(seen) >= 3 else UNKNOWN_WORK_S)


def _assumed(work_s: float) -> Rule:
    return laggards(lambda world, *_: world.start_s + work_s)


def bounds(trials: int) -> Iterator[str]:
    """Search for the best rule that knows how long faults last: how much they may lose, before a restart and after it.

    A cost is stated right or five times too large, and a fault ends when it hurts most; or two faults have one reserve.
    """
    losses = np.geomspace(0.1, 10, 4001)  # over the cost as it is stated
    worst = np.maximum(1 + 1 / np.minimum(losses, 1), 1 + 5 * losses)
    yield f"A stated cost, right or five times too large: {worst.min():.2f}, at {losses[worst.argmin()]:.2f} of it."
    yield ""
    rows = []
    for slowdown, cost_s in product((2.0, 10.0), COSTS_S):
        kind, random, world = (
            KINDS["two faults, one in reserve"],
            np.random.default_rng(_SEED),
            World(cost_s, n_reserve=1),
        )
        made = [kind.draw(random, slowdown) for _ in range(trials)]
        best_s = _best_s(made, [world] * trials)
        phases_s = [sum(slow.share * slow.length_s for slow in slows if not slow.device) for slows in made]
        faults = [[slow for slow in slows if slow.device] for slows in made]
        lost_s = [
            np.array([play(each, world, _by_loss(*may_lose_s)).lost_s for each in faults]) + phases_s
            for may_lose_s in product(_MAY_LOSE_S, repeat=2)
        ]
        least = min(each.sum() / best_s.sum() for each in lost_s), min((each / best_s).max() for each in lost_s)
        found = _ratios(made, [world] * trials, best_s, RULES["laggard"])
        rows.append([f"{slowdown:g}", f"{cost_s:g} s", *(f"{each:.2f}" for each in (*least, *found))])
    yield from table(["slowdown", "restart costs", "best mean", "best worst day", "laggard's mean", "worst day"], rows)


def _by_loss(first_s: float, then_s: float) -> Wait:
    """Return how long to wait if a fault may lose so much before the first restart, and so much after it."""
    return lambda slow, restarts: max(VERDICT_S, (then_s if restarts else first_s) / slow.share)
