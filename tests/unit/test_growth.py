"""A job on fewer nodes relaunches with more once it has lost as much by waiting as a relaunch costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from laggard.resilience.controller.growth import Growth
from laggard.resilience.controller.launches import Launches
from laggard.resilience.decision.events import Settings
from laggard.resilience.decision.roster import Roster

FOUR = Settings(nodes=4, resilient=True, exhaust_resources=True, grow_back=True)
SHRUNK = Roster(("n1", "n2", "n3"), ("n4", "n5"))


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def launches(cost_s: float | None, number: int = 1, program: object = "runs") -> Launches:
    return cast("Launches", SimpleNamespace(number=number, program=program, restart_cost_s=lambda: cost_s))


@pytest.mark.parametrize(
    ("cost_s", "pays_after_s"),
    [(100.0, 400.0), (3.0, 120.0), (None, 240.0)],  # a quarter of the time is lost; at least 30 s; 60 s if unknown
)
def test_it_pays_when_as_much_was_lost_as_a_relaunch_costs(cost_s: float | None, pays_after_s: float) -> None:
    clock = Clock()
    growth = Growth(FOUR, clock)
    assert not growth.pays(SHRUNK, launches(cost_s))
    clock.now_s += pays_after_s
    assert not growth.pays(SHRUNK, launches(cost_s))
    clock.now_s += 0.1
    assert growth.pays(SHRUNK, launches(cost_s))


@pytest.mark.parametrize(
    ("settings", "roster", "program"),
    [
        (Settings(nodes=4, resilient=True, exhaust_resources=True), SHRUNK, "runs"),  # not asked for
        (FOUR, Roster(("n1", "n2", "n3")), "runs"),  # nobody in reserve
        (FOUR, Roster(("n1", "n2", "n3", "n4"), ("n5",)), "runs"),  # enough
        (FOUR, SHRUNK, None),  # between two launches
    ],
)
def test_it_never_pays_where_there_is_nothing_to_gain(settings: Settings, roster: Roster, program: object) -> None:
    clock = Clock()
    growth = Growth(settings, clock)
    for _ in range(2):
        assert not growth.pays(roster, launches(30.0, program=program))
        clock.now_s += 1e6


def test_a_new_launch_or_one_more_node_begins_anew() -> None:
    clock = Clock()
    growth = Growth(FOUR, clock)
    growth.pays(SHRUNK, launches(None))
    clock.now_s += 1000
    assert not growth.pays(SHRUNK, launches(None, number=2))
    clock.now_s += 1000
    assert growth.pays(SHRUNK, launches(None, number=2))
    two = Roster(("n1", "n2"), ("n4",))
    growth.pays(two, launches(None))
    clock.now_s += 1000
    assert not growth.pays(Roster(("n1", "n2"), ("n4", "n5")), launches(None))
