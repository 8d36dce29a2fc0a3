"""One round of transfers as arrays: which were calm, how they compare, and who has how fast ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from laggard.collectors.links.reading import LinkReading
from laggard.detectors.links.flows import Flows, flows_of, other_fastest, ranked

NAN = math.nan


def flows(*each: tuple[int, int, float], foreign: Sequence[float] = ()) -> Flows:
    senders, receivers, log_times = zip(*each, strict=True) if each else ((), (), ())
    shares = np.array(foreign or [0.0] * len(each), np.float32)
    return Flows(np.array(senders, np.intp), np.array(receivers, np.intp), np.array(log_times, np.float32), shares)


@pytest.mark.parametrize(
    ("foreign", "calm"),
    [
        ((0.05, 0, 0, 0), [True, True, True, True]),
        ((0.06, 0, 0, 0), [False, False, True, True]),  # and the way back, whose acknowledgements wait
        ((0, 0, 0.06, 0), [True, True, False, True]),
        ((0, 0, 0, 0.06), [True, True, True, False]),
    ],
)
def test_a_transfer_is_calm_if_others_carried_5_percent_at_most_on_its_way_and_back(
    foreign: tuple[float, ...], calm: list[bool]
) -> None:
    round_of_three = flows((0, 1, 0.0), (1, 0, 0.1), (2, 1, 0.2), (0, 2, 0.3), foreign=foreign)
    # The third and the fourth are neither the same way nor each other's way back.
    assert round_of_three.calm().tolist() == calm
    kept = round_of_three.undisturbed()
    assert kept.log_time.tolist() == [at for at, is_calm in zip(round_of_three.log_time, calm, strict=True) if is_calm]
    assert len(kept) == sum(calm)


@pytest.mark.parametrize(
    ("log_times", "found"),
    [
        ((0.3,), 0.3),
        ((0.02, 0.01), 0.01),  # of an even number the lesser one
        ((0.03, 0.01, 0.02), 0.02),
        ((0.04, 0.03, 0.02, 0.01), 0.02),
        ((0.0, 0.139, 0.5), 0.139),  # 15 % is 0.1398
        ((0.0, 0.141, 0.5), 0.0),  # most were disturbed
    ],
)
def test_between_two_nodes_the_middle_time_counts_unless_most_were_disturbed(
    log_times: tuple[float, ...], found: float
) -> None:
    both = flows((0, 1, 7.0), *((1, 0, each - 10) for each in log_times)).of_two_nodes()
    assert list(zip(both.sender.tolist(), both.receiver.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert both.log_time.tolist() == pytest.approx([7.0, found - 10])


def test_between_two_nodes_a_direction_without_transfers_is_left_out() -> None:
    back = flows((1, 0, 0.5)).of_two_nodes()
    assert (back.sender.tolist(), back.receiver.tolist(), back.log_time.tolist()) == ([1], [0], [0.5])
    assert len(flows().of_two_nodes()) == 0


def test_transfers_below_a_leaf_and_between_leaves_are_compared_with_their_like() -> None:
    given = flows((0, 1, 1.0), (1, 0, 2.0), (2, 3, 3.0), (0, 2, 10.0), (2, 0, 30.0))
    near = np.array([True, True, True, False, False])
    assert given.without_classes(near).log_time.tolist() == [-1, 0, 1, -10, 10]
    assert given.without_classes(np.ones(5, np.bool_)).log_time.tolist() == [-2, -1, 0, 7, 27]
    assert given.log_time.tolist() == [1, 2, 3, 10, 30]


def test_readings_are_the_log_of_seconds_a_byte_and_what_cannot_be_is_left_out() -> None:
    def reading(sender: str, receiver: str, duration_s: float, n_bytes: int) -> LinkReading:
        return LinkReading(0, sender, receiver, duration_s, n_bytes, 0.25)

    found = flows_of(
        [
            reading("a", "b", 2.0, 4),
            reading("a", "x", 2.0, 4),
            reading("x", "a", 2.0, 4),
            reading("b", "a", 2.0, 0),
            reading("b", "a", 0.0, 4),
            reading("b", "a", -1.0, 4),
            reading("b", "a", math.inf, 4),
            reading("b", "a", NAN, 4),
            reading("b", "a", 1.0, 1),
        ],
        {"a": 0, "b": 1},
    )
    assert (found.sender.tolist(), found.receiver.tolist()) == ([0, 1], [1, 0])
    assert found.log_time.tolist() == pytest.approx([math.log(0.5), 0.0])
    assert found.foreign.tolist() == [0.25, 0.25]


def test_each_owner_has_its_values_in_order() -> None:
    table, rank, sizes = ranked(np.array([2, 0, 2, 2]), 3, np.array([5, 9, 3, 4], np.float32))
    np.testing.assert_array_equal(table, [[9, NAN, NAN], [NAN, NAN, NAN], [3, 4, 5]])
    assert (rank.tolist(), sizes.tolist()) == ([2, 0, 0, 1], [1, 0, 3])
    assert ranked(np.zeros(0, np.intp), 2, np.zeros(0, np.float32))[0].shape == (2, 0)


@pytest.mark.parametrize(
    ("owners", "values", "others"),
    [
        ([0, 0, 0], [3, 1, 2], [1, 2, 1]),
        ([0, 1, 0], [3, 1, 2], [2, NAN, 3]),
        ([0, 1], [3, 1], [NAN, NAN]),
        ([1, 1], [2, 2], [2, 2]),
    ],
)
def test_the_fastest_of_the_others_is_that_of_the_same_owner(
    owners: list[int], values: list[float], others: list[float]
) -> None:
    found = other_fastest(np.array(owners, np.intp), 2, np.array(values, np.float32))
    np.testing.assert_array_equal(found, np.array(others, np.float32))
