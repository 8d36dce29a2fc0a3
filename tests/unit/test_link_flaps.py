"""Whose link goes down again and again."""

from __future__ import annotations

from laggard.detectors.links.losses import LinkFlaps
from laggard.detectors.notices import Flapping

ROUND_S = 60.0


def told(downs: list[int]) -> list[tuple[int, Flapping]]:
    flaps = LinkFlaps(begun_s=0.0)
    return [
        (number, each)
        for number, count in enumerate(downs, 1)
        for each in (*flaps.add("node2", count, ROUND_S * number), *flaps.add("node1", 0, ROUND_S * number))
    ]


def test_a_link_that_goes_down_several_times_in_a_round_is_told_at_once_and_once() -> None:
    assert told([0, 6, 3, 0, 5]) == [(2, Flapping("node2", 6, 60.0))]


def test_one_that_goes_down_once_in_a_round_is_told_when_it_does_so_again() -> None:
    assert told([0, 1, 0, 0, 1, 1]) == [(5, Flapping("node2", 2, 240.0))]


def test_it_is_over_after_ten_minutes_without_and_told_again_if_it_comes_again() -> None:
    assert told([0, 6, 3, *[0] * 11, 2]) == [
        (2, Flapping("node2", 6, 60.0)),
        (13, Flapping("node2", 9, 120.0, 600.0)),
        (15, Flapping("node2", 2, 60.0)),
    ]


def test_once_is_somebody_at_the_switch_however_often_that_is() -> None:
    assert told(([1] + [0] * 10) * 5) == []
