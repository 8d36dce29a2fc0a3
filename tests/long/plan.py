"""Faults as data: what is killed, and when; the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["WITHOUT_RAY", "WITH_RAY", "Fault", "Victim", "plan_of"]

Victim = Literal["worker", "driver", "agent", "raylet", "head", "state server", "controller"]
# Weights: highest where no relaunch follows, lowest where the whole command ends, so that each launch sees many faults.
WITH_RAY: Mapping[Victim, int] = {
    "worker": 12,
    "driver": 3,
    "agent": 2,
    "raylet": 2,
    "head": 1,
    "state server": 12,
    "controller": 1,
}
# Without Ray each worker is a copy of the program, and there is no driver.
WITHOUT_RAY: Mapping[Victim, int] = {"worker": 12, "agent": 2, "state server": 12, "controller": 1}
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Fault:
    """One or more processes to kill at one moment.

    Attributes
    ----------
    settled
        Wait until the program counts again first; otherwise the fault may well fall into a restart.
    pause_s
        Then wait so long.
    victims
        Kinds of processes of which one each is killed, all at once.
    """

    settled: bool
    pause_s: float
    victims: tuple[Victim, ...]


def plan_of(seed: int, n_faults: int, weights: Mapping[Victim, int]) -> list[Fault]:
    """Return faults with ``n_faults`` victims in all, chosen by weight."""
    chance = random.Random(seed)
    plan: list[Fault] = []
    left = n_faults
    while left > 0:
        size = min(left, chance.choice([1, 1, 2, 3]))
        victims = tuple(chance.choices(list(weights), list(weights.values()), k=size))
        plan.append(Fault(chance.random() < 0.5, chance.uniform(0, LONGEST_PAUSE_S), victims))
        left -= size
    return plan
