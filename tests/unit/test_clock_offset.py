"""The clocks of other nodes, by the round trip of a ping, and who was first by one clock."""

from __future__ import annotations

import pytest

from laggard.resilience.decision.failure import explain
from laggard.resilience.decision.origin import ProcessEnd, by_one_clock
from laggard.system.clock_offset import ClockOffset


def test_an_offset_is_known_to_half_of_the_round_trip() -> None:
    assert ClockOffset.of_ping(100.0, 112.5, 101.0) == ClockOffset(12.0, 0.5)


@pytest.mark.parametrize(
    ("offset", "correction_s", "is_much"),
    [
        (ClockOffset(12.0, 0.5), 12.0, True),
        (ClockOffset(-1.2, 0.1), -1.2, True),
        (ClockOffset(-0.6, 0.5), -0.6, False),
        (ClockOffset(0.4, 0.5), 0.0, False),  # it may be none at all
    ],
)
def test_an_offset_counts_as_far_as_it_is_certain(offset: ClockOffset, correction_s: float, is_much: bool) -> None:
    assert (offset.correction_s, offset.is_much) == (correction_s, is_much)


def test_the_first_of_two_processes_that_say_nothing_is_so_by_the_primarys_clock() -> None:
    """The clock of n2 is two seconds ahead: its process ended first, though its own clock says otherwise."""
    ends = [ProcessEnd("n1", 7, 1, 100.0, 60.0), ProcessEnd("n2", 8, 1, 101.5, 60.0)]
    assert explain(ends, {}).host == "n1"
    corrected = by_one_clock(ends, {"n2": ClockOffset(2.0, 0.1)})
    assert [end.ended_s for end in corrected] == [100.0, 99.5]
    assert explain(corrected, {}).host == "n2"
