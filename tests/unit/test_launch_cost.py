"""What a restart would cost, from what a launch shows."""

from __future__ import annotations

from typing import Any

import pytest

from laggard.detectors.economics.launch_cost import LaunchCost
from laggard.detectors.evidence import Price, Saved
from laggard.detectors.wording import known_from
from laggard.kvstore.control import LaunchRecord, Signs

FIRST = LaunchRecord(0, (), (), began_s=1000.0)
SECOND = LaunchRecord(1, (), (), relaunch_s=20.0, began_s=1000.0, commits=7, step=100.0)


def measured(start_s: float, unsaved_s: float, saved: Saved = "commit", **more: bool) -> Price:
    return Price(start_s + unsaved_s, "measured", start_s, unsaved_s, saved, **more)


def test_before_any_progress_a_start_is_assumed_at_least_the_gap_and_ten_minutes_of_work_at_most() -> None:
    for now_s, unsaved_s in ((1100.0, 100.0), (2000.0, 600.0)):
        assert LaunchCost(FIRST).price(now_s) == Price(60.0 + unsaved_s, "assumed")
    assert LaunchCost(LaunchRecord(0, (), ())).price(2000.0).cost_s == 660.0
    long_gap = LaunchRecord(1, (), (), relaunch_s=200.0, began_s=1000.0)
    assert LaunchCost(long_gap).price(1000.0).cost_s == 200.0


@pytest.mark.parametrize(
    ("launch", "signs", "price"),
    [
        (FIRST, Signs(1), measured(45.0, 20.0)),
        (FIRST, Signs(0, step=0.0), measured(45.0, 65.0, "unknown")),
        (FIRST, Signs(0, step=30.0, checkpointed=30.0), measured(45.0, 20.0, "checkpoint")),
        (FIRST, Signs(9, step=30.0, checkpointed=30.0), measured(45.0, 20.0, "checkpoint")),
        (SECOND, Signs(8), measured(65.0, 20.0)),
        (SECOND, Signs(7, step=101.0), measured(65.0, 0.0, "done again")),
    ],
)
def test_progress_is_a_commit_or_a_step_beyond_those_before(launch: LaunchRecord, signs: Signs, price: Price) -> None:
    cost = LaunchCost(launch)
    cost.note(Signs(launch.commits, launch.step), 1010.0)
    cost.note(signs, 1045.0)
    assert cost.price(1065.0) == price


def test_any_step_is_progress_of_a_program_that_reports_its_checkpoints() -> None:
    cost = LaunchCost(SECOND, {"start_s": 10.0, "saved": "checkpoint"})
    cost.note(Signs(7, step=51.0), 1030.0)
    assert cost.price(1040.0) == measured(50.0, 40.0, "checkpoint")


def test_steps_that_are_done_again_are_no_progress() -> None:
    cost = LaunchCost(SECOND)
    cost.note(Signs(7, step=100.0), 1045.0)
    assert cost.price(1065.0).source == "assumed"
    cost.note(Signs(8, step=100.0), 1050.0)
    assert cost.price(1065.0) == measured(70.0, 15.0)


def test_work_is_lost_since_the_checkpoint_not_since_it_was_reported_and_commits_no_longer_count() -> None:
    cost = LaunchCost(FIRST)
    cost.note(Signs(0, step=0.0), 1030.0)
    cost.note(Signs(1, step=50.0), 1530.0)
    cost.note(Signs(2, step=100.0, checkpointed=80.0), 2030.0)  # ten seconds a step
    assert cost.price(2030.0) == measured(30.0, 200.0, "checkpoint")
    cost.note(Signs(3, step=120.0, checkpointed=80.0), 2230.0)
    assert cost.price(2230.0) == measured(30.0, 400.0, "checkpoint")
    cost.note(Signs(3, step=130.0, checkpointed=110.0), 2330.0)
    assert cost.price(2330.0) == measured(30.0, 200.0, "checkpoint")
    cost.note(Signs(3, step=130.0, checkpointed=130.0), 2340.0)
    assert cost.price(2340.0) == measured(30.0, 0.0, "checkpoint")


def test_without_a_checkpoint_ten_minutes_of_work_are_lost_at_most_until_a_relaunch_shows_it() -> None:
    cost = LaunchCost(FIRST)
    cost.note(Signs(0, step=0.0), 1030.0)
    assert [cost.price(now_s).cost_s for now_s in (1100.0, 5000.0)] == [130.0, 630.0]
    later = LaunchCost(SECOND, cost.to_state())
    later.note(Signs(7, step=90.0), 1040.0)
    assert later.price(1400.0).cost_s == 430.0
    later.note(Signs(7, step=101.0), 1500.0)
    assert later.price(9000.0) == measured(520.0, 0.0, "done again")


@pytest.mark.parametrize("given_s", [20.0, 500.0])
def test_what_was_given_counts_until_all_of_it_is_measured(given_s: float) -> None:
    cost = LaunchCost(FIRST)
    cost.note(Signs(1, step=0.0), 1030.0)
    assert cost.price(1040.0, given_s) == Price(given_s)
    cost.note(Signs(1, step=10.0, checkpointed=10.0), 1100.0)
    assert cost.price(1150.0, given_s) == measured(30.0, 50.0, "checkpoint")
    assert cost.price(1150.0, 0.0) == Price(0.0)


def test_a_cost_of_seconds_is_taken_for_thirty() -> None:
    cost = LaunchCost(FIRST)
    cost.note(Signs(1), 1003.0)
    assert cost.price(1004.0) == Price(30.0, "measured", 3.0, 1.0, "commit", is_least=True)


def test_a_cost_of_thirty_seconds_is_what_it_is_and_half_a_second_is_no_whole_one() -> None:
    for seconds, words in ((30.0, "30 s to the first"), (0.5, "the least that is assumed; 0.5 s to the first")):
        cost = LaunchCost(FIRST)
        cost.note(Signs(1), 1000.0 + seconds)
        price = cost.price(1000.0 + seconds)
        assert (price.cost_s, known_from(price)) == (30.0, f"{words} progress, 0 s since the last commit")


def test_what_a_launch_took_is_known_to_the_next_one_until_that_has_its_own() -> None:
    for signs, saved in ((Signs(1), "commit"), (Signs(0, step=1.0, checkpointed=1.0), "checkpoint")):
        cost = LaunchCost(FIRST)
        cost.note(signs, 1045.0)
        later = LaunchCost(SECOND, cost.to_state())
        assert later.price(1005.0) == measured(45.0, 5.0, saved)  # type: ignore[arg-type]
        later.note(Signs(8, step=2.0), 1080.0)
        assert later.price(1080.0) == measured(100.0, 0.0 if saved == "commit" else 80.0, saved)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [[], {"start_s": []}, {"start_s": 1.0, "saved": "somewhere"}])
def test_what_was_kept_of_an_earlier_launch_is_checked(kept: Any) -> None:
    with pytest.raises(ValueError, match="Kept"):
        LaunchCost(FIRST, kept)
