"""Faults as data: what is hit, how, and when; the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["BLOWS", "ON_SITE", "WITHOUT_RAY", "WITH_RAY", "Blow", "Fault", "Victim", "plan_of"]

Victim = Literal["worker", "driver", "agent", "raylet", "head", "state server", "controller"]
Blow = Literal["killed", "stopped", "fails", "raises"]
# Weights of what happens to a worker; everything else is killed, or stopped one time in three.
BLOWS: Mapping[Blow, int] = {"killed": 5, "stopped": 2, "fails": 1, "raises": 1}
# A stopped process goes on after so many seconds, if it is still there: before anybody notices, or long after.
STOPPED_S = (0.5, 2.0, 15.0)
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
# Without Ray each worker is one of its ranks, and there is no driver.
WITHOUT_RAY: Mapping[Victim, int] = {"worker": 12, "agent": 2, "state server": 12, "controller": 1}
# On a server of the site's, a job goes on whenever its controller is killed, after a wait of ten seconds.
ON_SITE: Mapping[Victim, int] = {"worker": 6, "agent": 1, "state server": 8, "controller": 4}
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Fault:
    """One or more processes to hit at one moment.

    Attributes
    ----------
    settled
        Wait until the program counts again first; otherwise the fault may well fall into a restart.
    pause_s
        Then wait so long.
    victims
        Kinds of processes of which one each is hit, all at once.
    blows
        What happens to each: killed, stopped for a while (SIGSTOP), or, a worker only, it exits with an error code or
        raises an exception.
    stopped_s
        How long those that are stopped are.
    """

    settled: bool
    pause_s: float
    victims: tuple[Victim, ...]
    blows: tuple[Blow, ...]
    stopped_s: float


def plan_of(seed: int, n_faults: int, weights: Mapping[Victim, int]) -> list[Fault]:
    """Return faults with ``n_faults`` victims in all, chosen by weight."""
    chance = random.Random(seed)
    plan: list[Fault] = []
    left = n_faults
    while left > 0:
        size = min(left, chance.choice([1, 1, 2, 3]))
        victims = tuple(chance.choices(list(weights), list(weights.values()), k=size))
        blows = tuple(_blow(chance, victim) for victim in victims)
        pause_s, stopped_s = chance.uniform(0, LONGEST_PAUSE_S), chance.choice(STOPPED_S)
        plan.append(Fault(chance.random() < 0.5, pause_s, victims, blows, stopped_s))
        left -= size
    return plan


def _blow(chance: random.Random, victim: Victim) -> Blow:
    if victim == "worker":
        return chance.choices(list(BLOWS), list(BLOWS.values()))[0]
    return "stopped" if chance.random() < 1 / 3 else "killed"
