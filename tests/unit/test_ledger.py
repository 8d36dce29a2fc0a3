"""The ledger of failures, and the places that are drawn for suspects."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from laggard.resilience.decision.ledger import Incident, device_on, evidence_against, loss_of, suspects
from laggard.resilience.decision.placement import SCHEDULERS, Placement, draw, draw_devices
from laggard.resilience.decision.roster import Roster

NOW_S = 1e9
FOUR = Roster(("n1", "n2", "n3", "n4"), ("n5",))


def test_a_failure_of_a_node_whose_place_was_not_drawn_is_a_suspicion_and_no_more() -> None:
    found = evidence_against("n2", [Incident("n2", NOW_S, 0.75)] * 3, NOW_S)
    assert (found.value, found.failures, found.placements, found.is_enough) == (2.25, 3, 1, False)


def test_each_bet_wins_where_a_failure_follows_and_loses_where_it_stays() -> None:
    followed = [Incident("n2", NOW_S, 1.0), Incident("n2", NOW_S, 0.0, drawn={"n2": 4})]
    won = [1 - bet + bet * 4 for bet in (0.8, 0.4, 0.1)]
    assert evidence_against("n2", followed, NOW_S).value == pytest.approx(sum(won) / 3)
    stayed = [Incident("n2", NOW_S, 1.0), Incident("n3", NOW_S, 0.0, drawn={"n2": 4})]
    assert evidence_against("n2", stayed, NOW_S).value == pytest.approx((0.2 + 0.6 + 0.9) / 3)


def test_a_device_has_half_of_a_stake_and_the_draws_within_its_node() -> None:
    first = Incident("n2", NOW_S, 1.0, device="3")
    again = Incident("n2", NOW_S, 0.0, "3", {"n2": 2}, {"n2": 8})
    found = evidence_against("n2", [first, again], NOW_S)
    assert found.device == "3"
    assert found.value == pytest.approx(0.5 * sum(1 - bet + bet * 16 for bet in (0.8, 0.4, 0.1)) / 3)
    elsewhere = Incident("n2", NOW_S, 0.0, "4", {}, {"n2": 8})
    assert evidence_against("n2", [first, elsewhere], NOW_S).device == ""


def test_the_ledger_forgets_after_a_day() -> None:
    old, new = Incident("n2", NOW_S - 86_400, 4.0), Incident("n3", NOW_S - 86_399, 4.0)
    assert [each.host for each in suspects(["n1", "n2", "n3"], [old, new], NOW_S)] == ["n3"]


def test_the_most_suspect_node_is_the_first_and_a_little_is_no_suspicion() -> None:
    known = [Incident("n1", NOW_S, 0.04), Incident("n2", NOW_S, 0.3), Incident("n3", NOW_S, 4.0)]
    assert [each.host for each in suspects(["n1", "n2", "n3"], known, NOW_S)] == ["n3", "n2"]


def test_a_loss_is_shared_with_another_node_that_was_lost_within_ten_minutes() -> None:
    first = loss_of("n2", (), NOW_S)
    assert (first.stake, first.is_loss) == (50, True)
    assert loss_of("n3", [first], NOW_S + 599).stake == 0
    assert loss_of("n3", [first], NOW_S + 600).stake == 50
    assert loss_of("n2", [first], NOW_S + 1).stake == 50
    assert loss_of("n3", [Incident("n2", NOW_S, 4.0)], NOW_S).stake == 50


def pick(*wanted: int) -> Callable[[int], int]:
    left = list(wanted)
    return lambda _: left.pop(0)


def test_a_suspect_changes_places_with_another_node_or_with_one_of_the_reserve() -> None:
    roster, placement = draw(FOUR, SCHEDULERS, ["n2"], {}, pick(2))
    assert roster == FOUR
    assert (placement.order, placement.drawn) == (("n1", "n4", "n3", "n2"), {"n2": 4})
    roster, placement = draw(FOUR, SCHEDULERS, ["n2"], {}, pick(3))
    assert roster == Roster(("n1", "n5", "n3", "n4"), ("n2",))
    assert (placement.order, placement.drawn) == (("n1", "n5", "n3", "n4"), {"n2": 4})


def test_the_primary_stays_in_use_and_may_have_any_ranks() -> None:
    roster, placement = draw(FOUR, SCHEDULERS, ["n1"], {}, pick(2))
    assert roster == FOUR
    assert (placement.order, placement.drawn) == (("n4", "n2", "n3", "n1"), {"n1": 3})


def test_of_two_nodes_a_coin_says_whether_they_change() -> None:
    two = Roster(("n1", "n2"))
    assert draw(two, SCHEDULERS, ["n2"], {}, pick(0))[1] == Placement(("n1", "n2"), {"n2": 2})
    assert draw(two, SCHEDULERS, ["n2"], {}, pick(1))[1] == Placement(("n2", "n1"), {"n2": 2})
    assert draw(Roster(("n1",)), SCHEDULERS, ["n1"], {}, pick())[1] == Placement(("n1",))


def test_a_suspect_stays_below_its_leaf_switch_where_another_node_is() -> None:
    leaves = {"n1": "a", "n2": "b", "n3": "a", "n4": "b", "n5": "b"}
    assert draw(FOUR, SCHEDULERS, ["n2"], leaves, pick(0))[1].order == ("n1", "n4", "n3", "n2")
    assert draw(FOUR, SCHEDULERS, ["n2"], {"n2": "b"}, pick(0))[1].order == ("n2", "n1", "n3", "n4")


def test_three_suspects_move_at_most_and_nobody_twice() -> None:
    many = Roster(tuple(f"n{number}" for number in range(1, 9)))
    below = random.Random(1).randrange
    _, placement = draw(many, SCHEDULERS, ["n2", "n3", "n4", "n5"], {}, below)
    assert sorted(placement.order) == sorted(many.active)
    assert set(placement.drawn) <= {"n2", "n3", "n4"}
    assert sum(here != there for here, there in zip(placement.order, many.active, strict=True)) == 2 * len(
        placement.drawn
    )


def test_nodes_that_come_in_have_the_places_of_those_that_left() -> None:
    placement = Placement(("n3", "n1", "n2"))
    assert placement.of(("n1", "n2", "n3")) == ("n3", "n1", "n2")
    assert placement.of(("n1", "n3", "n4")) == ("n3", "n1", "n4")
    assert placement.of(("n1", "n3")) == ("n3", "n1")
    assert placement.of(("n1", "n2", "n3", "n4")) == ("n3", "n1", "n2", "n4")
    assert SCHEDULERS.of(("n1", "n2")) == ("n1", "n2")


def test_a_node_without_devices_does_not_take_the_place_of_one_that_has_some() -> None:
    roster = Roster(("n1", "n2"), ("n3",), with_devices=frozenset({"n1", "n2"}))
    assert draw(roster, SCHEDULERS, ["n2"], {}, pick(0))[1].drawn == {"n2": 2}


def test_a_suspect_device_changes_places_within_its_node() -> None:
    devices = {"n2": ("0", "1", "2", "3"), "n3": ("0",)}
    placement = draw_devices(SCHEDULERS, {"n2": "1", "n3": "0", "n4": "", "n1": "0"}, devices, pick(2))
    assert (placement.devices, placement.devices_drawn) == ({"n2": ("0", "3", "2", "1")}, {"n2": 3})
    again = draw_devices(placement, {"n2": "3"}, devices, pick(1))
    assert (again.devices, again.devices_drawn) == ({"n2": ("3", "0", "2", "1")}, {"n2": 4})
    kept = draw_devices(again, {}, devices, pick())
    assert (kept.devices, kept.devices_drawn) == (again.devices, {})
    assert draw_devices(SCHEDULERS, {"n2": "1"}, {"n2": ("0", "1")}, pick(0)).devices_drawn == {"n2": 2}


def test_the_device_of_the_newest_failure_on_a_node_is_the_suspect() -> None:
    known = [Incident("n2", 1.0, 1.0, "3"), Incident("n2", 2.0, 1.0, "1"), Incident("n3", 3.0, 1.0)]
    assert [device_on(host, known) for host in ("n2", "n3", "n4")] == ["1", "", ""]
