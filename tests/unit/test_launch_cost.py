"""What a restart would cost, from what a launch shows."""

from __future__ import annotations

import pytest

from laggard.detectors.economics.launch_cost import LaunchCost
from laggard.detectors.evidence import Price
from laggard.detectors.wording import known_from
from laggard.kvstore.control import LaunchRecord, Signs

FIRST = LaunchRecord(0, (), (), began_s=1000.0)
SECOND = LaunchRecord(1, (), (), relaunch_s=20.0, began_s=1000.0, commits=7, step=100.0)


def test_before_any_progress_a_cost_is_assumed_and_at_least_the_gap() -> None:
    assert LaunchCost(FIRST).price(2000.0) == Price(60.0, "assumed")
    long_gap = LaunchRecord(1, (), (), relaunch_s=200.0, began_s=1000.0)
    assert LaunchCost(long_gap).price(2000.0).cost_s == 200.0


@pytest.mark.parametrize(
    ("launch", "signs", "price"),
    [
        (FIRST, Signs(1), Price(65.0, "measured", 45.0, 20.0)),
        (FIRST, Signs(0, step=0.0), Price(45.0, "measured", 45.0)),
        (SECOND, Signs(8), Price(85.0, "measured", 65.0, 20.0)),
        (SECOND, Signs(7, step=101.0), Price(65.0, "measured", 65.0)),
    ],
)
def test_progress_is_a_commit_or_a_step_beyond_those_before(launch: LaunchRecord, signs: Signs, price: Price) -> None:
    cost = LaunchCost(launch)
    cost.note(Signs(launch.commits, launch.step), 0, 1010.0)
    cost.note(signs, 0, 1045.0)
    assert cost.price(1065.0) == price


def test_steps_that_are_done_again_and_the_detectors_own_commits_are_no_progress() -> None:
    cost = LaunchCost(SECOND)
    cost.note(Signs(8, step=100.0), 1, 1045.0)
    assert cost.price(1065.0).source == "assumed"
    cost.note(Signs(10, step=100.0), 2, 1050.0)
    assert cost.price(1065.0) == Price(85.0, "measured", 70.0, 15.0)
    cost.note(Signs(11, step=100.0), 3, 1060.0)
    assert cost.price(1065.0).cost_s == 85.0


def test_a_cost_of_seconds_is_taken_for_thirty() -> None:
    cost = LaunchCost(FIRST)
    cost.note(Signs(1), 0, 1003.0)
    assert cost.price(1004.0) == Price(30.0, "measured", 3.0, 1.0, is_least=True)


def test_a_cost_of_thirty_seconds_is_what_it_is_and_half_a_second_is_no_whole_one() -> None:
    for seconds, words in ((30.0, "30 s to the first"), (0.5, "the least that is assumed; 0.5 s to the first")):
        cost = LaunchCost(FIRST)
        cost.note(Signs(0, step=1.0), 0, 1000.0 + seconds)
        price = cost.price(2000.0)
        assert (price.cost_s, known_from(price)) == (30.0, f"{words} progress")


def test_what_a_launch_took_is_known_to_the_next_one_until_that_has_its_own() -> None:
    cost = LaunchCost(FIRST)
    cost.note(Signs(1), 0, 1045.0)
    later = LaunchCost(SECOND, cost.to_state())
    assert later.price(1005.0) == Price(50.0, "measured", 45.0, 5.0)
    later.note(Signs(8), 0, 1080.0)
    assert later.price(1080.0) == Price(100.0, "measured", 100.0, 0.0)
