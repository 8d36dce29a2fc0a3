"""Faults as data: what is killed, and when; the same seed gives the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["VICTIMS", "Fault", "Victim", "plan_of"]

Victim = Literal["worker", "driver", "agent", "raylet", "head", "state server", "controller"]
VICTIMS: tuple[Victim, ...] = ("worker", "driver", "agent", "raylet", "head", "state server", "controller")
# What costs no relaunch is killed most often: so a launch sees many faults, and a storm is worth its time.
WEIGHTS = (12, 3, 2, 2, 1, 12, 1)
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Fault:
    """One moment of killing.

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


def plan_of(seed: int, n_faults: int) -> list[Fault]:
    """Return moments of killing with ``n_faults`` victims in all."""
    chance = random.Random(seed)
    plan: list[Fault] = []
    left = n_faults
    while left > 0:
        size = min(left, chance.choice([1, 1, 2, 3]))
        victims = tuple(chance.choices(VICTIMS, WEIGHTS, k=size))
        plan.append(Fault(chance.random() < 0.5, chance.uniform(0, LONGEST_PAUSE_S), victims))
        left -= size
    return plan
