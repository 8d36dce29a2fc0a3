"""The matrix of links: who is in it, what is left out, and which readings count."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.telemetry.link_matrix import MAX_NAMES, LinkMatrix, matrix_of, natural, newest_of_one_size

NAMES = st.integers(0, 40).map("node{}".format)
LINKS = st.dictionaries(
    st.tuples(NAMES, NAMES).filter(lambda link: link[0] != link[1]), st.floats(1e-4, 10), min_size=1, max_size=120
)
LEAVES = st.dictionaries(NAMES, st.sampled_from(["leaf1", "leaf2", "leaf10", ""]))


def shown(
    seconds: Mapping[tuple[str, str], float], leaves: Mapping[str, str] | None = None, most: int = MAX_NAMES
) -> LinkMatrix:
    found = matrix_of(seconds, leaves, most)
    assert found is not None
    return found


def all_to_all(n_nodes: int, slow: str = "", times: float = 10.0) -> dict[tuple[str, str], float]:
    names = [f"node{number}" for number in range(1, n_nodes + 1)]
    return {(a, b): 0.03 * (times if a == slow else 1) for a in names for b in names if a != b}


def test_senders_are_rows_and_receivers_columns_in_the_order_of_people() -> None:
    found = shown({("node10", "node2"): 0.3, ("node2", "node10"): 0.03, ("node1", "node2"): 0.03})

    assert (found.kind, found.names, found.n_links, found.left_out) == ("nodes", ("node1", "node2", "node10"), 3, 0)
    assert found.seconds[2, 1] == 0.3
    assert found.seconds[2, 1] / found.median_s == pytest.approx(10)
    assert math.isnan(found.seconds[0, 2]), "they never met"


def test_nothing_measured_is_no_matrix() -> None:
    assert matrix_of({}) is None
    assert matrix_of({("a", "b"): math.nan, ("b", "a"): math.inf}) is None


@pytest.mark.parametrize(("n_nodes", "kind"), [(64, "nodes"), (65, "leaves")])
def test_above_64_nodes_there_is_a_row_for_each_leaf(n_nodes: int, kind: str) -> None:
    links = all_to_all(n_nodes, slow="node9")
    leaves = {f"node{number}": f"leaf{number % 3}" for number in range(1, n_nodes + 1)}

    found = shown(links, leaves)

    assert found.kind == kind
    assert found.left_out == 0
    assert found.n_links == len(links)
    whole = tuple(f"node{number}" for number in range(1, 65))
    assert found.names == (whole if kind == "nodes" else ("leaf0", "leaf1", "leaf2"))


def test_a_pair_of_leaves_has_the_median_of_the_links_between_them() -> None:
    leaves = {"a": "1", "b": "1", "c": "2", "d": "2"}
    links = {("a", "c"): 1.0, ("a", "d"): 2.0, ("b", "c"): 9.0, ("c", "a"): 4.0, ("a", "b"): 5.0}

    found = shown(links, leaves, most=3)

    assert found.names == ("1", "2")
    assert found.seconds[0, 1] == 2.0
    assert found.seconds[1, 0] == 4.0
    assert found.seconds[0, 0] == 5.0, "below one leaf"
    assert found.median_s == median(links.values()), "of the links, not of the leaves"


def test_nodes_whose_leaf_is_not_known_are_said_to_have_none() -> None:
    assert shown(all_to_all(4), {"node1": "leaf1"}, most=3).names == ("leaf1", "no leaf")


def test_without_leaves_the_slowest_node_comes_first_followed_by_those_that_it_has_met() -> None:
    names = [f"node{number}" for number in range(100)]
    links = {
        (name, names[(number + step) % 100]): 0.3 if number == 50 else 0.03
        for number, name in enumerate(names)
        for step in (1, 2, 3)
    }

    found = shown(links)

    assert found.names[0] == "node50"
    assert set(found.names[1:7]) == {"node47", "node48", "node49", "node51", "node52", "node53"}
    assert found.left_out == 36
    assert np.isfinite(found.seconds[0, 1:]).sum() == 3


def test_one_slow_path_does_not_make_its_ends_the_slowest() -> None:
    links = all_to_all(10, slow="node7", times=2.0)
    links["node1", "node2"] = links["node2", "node1"] = 30.0

    assert shown(links, most=3).names[0] == "node7"


@given(LINKS, LEAVES, st.integers(1, 12))
def test_it_is_bounded_and_every_cell_is_a_link_that_was_measured(
    links: dict[tuple[str, str], float], leaves: dict[str, str], most: int
) -> None:
    found = shown(links, leaves, most)

    nodes = {name for link in links for name in link}
    everybody = nodes if found.kind == "nodes" else {leaves.get(name) or "no leaf" for name in nodes}
    assert len(found.names) == len(set(found.names)) <= most
    assert len(found.names) + found.left_out == len(everybody)
    assert set(found.names) <= everybody
    assert found.seconds.shape == (len(found.names),) * 2
    for row, column in zip(*np.nonzero(np.isfinite(found.seconds)), strict=True):
        here, there = found.names[row], found.names[column]
        ends = [
            value
            for (sender, receiver), value in links.items()
            if (here, there)
            == (
                (sender, receiver)
                if found.kind == "nodes"
                else (leaves.get(sender) or "no leaf", leaves.get(receiver) or "no leaf")
            )
        ]
        assert found.seconds[row, column] == median(ends)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["median"] == found.median_s


def test_only_transfers_of_the_present_size_count() -> None:
    samples = [(("a", "b"), 1, 0.001), (("b", "a"), 2, 0.001), (("a", "b"), 12, 0.03), (("a", "c"), 13, 0.04)]
    sizes = [(12, 2.0**25), (1, 2.0**20), (2, 2.0**20), (13, 2.0**25)]

    assert newest_of_one_size(samples, sizes) == {("a", "b"): 0.03, ("a", "c"): 0.04}
    assert newest_of_one_size(samples, []) == {("a", "b"): 0.03, ("b", "a"): 0.001, ("a", "c"): 0.04}


@given(st.lists(st.tuples(st.sampled_from(["ab", "ba"]), st.integers(0, 9), st.floats(0, 1))))
def test_the_newest_reading_of_a_link_counts(samples: list[tuple[str, int, float]]) -> None:
    found = newest_of_one_size([((link[0], link[1]), at, value) for link, at, value in samples], [(0, 1.0)])

    for (sender, receiver), value in found.items():
        of_link = [(at, each) for link, at, each in samples if link == sender + receiver]
        assert (max(at for at, _ in of_link), value) in of_link
    assert len(found) == len({link for link, _, _ in samples})


def test_node2_comes_before_node10() -> None:
    assert sorted(["node10", "b", "node2", "²"], key=natural) == ["b", "node2", "node10", "²"]
    assert sorted(["0", "1", "2", "b"], key=natural) == ["b", "0", "1", "2"]


@pytest.mark.parametrize("most", [0, -1])
def test_without_room_there_is_no_matrix(most: int) -> None:
    assert matrix_of({("a", "b"): 1.0}, most=most) is None
    assert shown({("a", "b"): 1.0}, most=1).names == ("a",)


@pytest.mark.parametrize(("seconds", "counts"), [(-1e-9, False), (0.0, True), (1e-9, True), (math.inf, False)])
def test_a_time_below_zero_or_without_end_is_none(seconds: float, *, counts: bool) -> None:
    assert shown({("a", "b"): 1.0, ("b", "c"): seconds}).n_links == 1 + counts


@pytest.mark.parametrize(
    ("leaves", "names", "left_out"),
    [
        ({}, ("a", "b"), 2),
        (dict.fromkeys("abcd", "1"), ("a", "b"), 2),  # one leaf for all would be a matrix of one cell
        ({"a": "1", "b": "2", "c": "1", "d": "2"}, ("1", "2"), 0),
        ({"a": "1", "b": "2", "c": "3", "d": "3"}, ("1", "2"), 1),
    ],
)
def test_leaves_take_the_place_of_too_many_nodes_if_there_are_several(
    leaves: dict[str, str], names: tuple[str, ...], left_out: int
) -> None:
    found = shown({("a", "b"): 4.0, ("c", "d"): 1.0}, leaves, most=2)
    assert (found.names, found.left_out) == (names, left_out)


@pytest.mark.parametrize(
    ("links", "order"),
    [
        ({("a", "b"): 1.0, ("c", "d"): 2.0}, "cdab"),
        ({("a", "b"): 1.0, ("c", "d"): 1.0}, "abcd"),
        # c is slow to a alone, b to all that it has met
        ({("b", "a"): 3.0, ("c", "a"): 5.0, ("c", "d"): 1.0, ("d", "a"): 1.0}, "bacd"),
        # who receives slowly from all is slow as well
        ({("a", "d"): 4.0, ("b", "d"): 4.0, ("a", "b"): 1.0, ("b", "a"): 1.0}, "dab"),
        # of those that the slowest has met the slowest link first, whichever way it went
        ({("a", "b"): 5.0, ("a", "c"): 6.0, ("d", "a"): 7.0, ("b", "c"): 1.0}, "adcb"),
    ],
)
def test_the_slowest_come_first_each_followed_by_those_it_has_met(
    links: dict[tuple[str, str], float], order: str
) -> None:
    names = {name for link in links for name in link}
    for most in range(1, len(names)):
        for unit_s in (1.0, 1e-3):
            times = {link: value * unit_s for link, value in links.items()}
            assert shown(times, most=most).names == tuple(order[:most])


def test_the_page_reads_times_of_four_digits_and_which_rows_are_accused() -> None:
    found = shown({("a", "b"): 0.0123456, ("b", "c"): 1234567.0})
    text = found.to_json(["c", "gone", "a"])
    assert text["seconds"] == [None, 0.01235, None, None, None, 1235000.0, None, None, None]
    assert text["accused"] == {"c": ["c"], "a": ["a"]}
    leaves = shown({("a", "b"): 1.0, ("b", "c"): 1.0}, {"a": "1", "b": "1", "c": "2"}, most=2)
    assert leaves.accused(["b", "a", "gone"]) == {"1": ["b", "a"]}


@pytest.mark.parametrize(("changed_at", "counts"), [(4, True), (5, False), (6, False)])
def test_a_reading_as_old_as_the_last_one_of_another_size_does_not_count(changed_at: int, *, counts: bool) -> None:
    found = newest_of_one_size([(("a", "b"), 5, 0.1)], [(changed_at, 1.0), (9, 2.0)])
    assert found == ({("a", "b"): 0.1} if counts else {})


def test_of_two_readings_of_one_time_the_later_one_counts() -> None:
    assert newest_of_one_size([(("a", "b"), 5, 0.1), (("a", "b"), 5, 0.2)], []) == {("a", "b"): 0.2}
