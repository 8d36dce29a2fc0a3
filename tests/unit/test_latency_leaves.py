"""Leaf switches by round trips: found where they are clear, and otherwise none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.link_latency import leaf_search
from laggard.collectors.links.reading import LinkReading
from laggard.detectors.latency_leaves import EVERY, MIN_READINGS, LeafSearch, leaves_by_latency

NODES = [f"node{number}" for number in range(8)]
NEAR_S, FAR_S = 3e-5, 4e-5


def halves(node: str) -> int:
    return NODES.index(node) // 4


def trips(leaf: Callable[[str], int], times: int = MIN_READINGS) -> dict[tuple[str, str], list[float]]:
    return {
        (one, other): [NEAR_S if leaf(one) == leaf(other) else FAR_S] * times for one, other in permutations(NODES, 2)
    }


def test_nodes_with_short_round_trips_are_below_one_leaf() -> None:
    assert leaves_by_latency(trips(halves)) == {node: f"of node{4 * halves(node)}" for node in NODES}


def test_both_directions_of_a_pair_count_together() -> None:
    assert leaves_by_latency(trips(halves, MIN_READINGS // 2))
    assert leaves_by_latency(trips(halves, MIN_READINGS // 2 - 1)) == {}


@pytest.mark.parametrize(
    "leaf",
    [lambda _: 0, NODES.index, lambda node: int(node == "node0")],
    ids=["one leaf", "a leaf each", "a node alone"],
)
def test_leaves_that_hold_all_nodes_or_one_are_none(leaf: Callable[[str], int]) -> None:
    assert leaves_by_latency(trips(leaf)) == {}


def test_a_pair_that_is_far_though_both_are_near_others_of_the_leaf_makes_all_unclear() -> None:
    unclear = trips(halves)
    unclear["node0", "node1"] = unclear["node1", "node0"] = [FAR_S] * MIN_READINGS
    assert leaves_by_latency(unclear) == {}


def test_two_leaves_whose_nodes_hardly_met_are_not_told_apart() -> None:
    met = trips(halves)
    few = {pair: each for pair, each in met.items() if halves(pair[0]) == halves(pair[1]) or "node0" in pair}
    assert leaves_by_latency(few)
    met_by_node0 = {("node0", "node4"), ("node0", "node5"), ("node4", "node0"), ("node5", "node0")}
    fewer = {pair: each for pair, each in few.items() if halves(pair[0]) == halves(pair[1]) or pair in met_by_node0}
    assert leaves_by_latency(fewer) == {}


def test_fewer_than_six_nodes_are_not_divided() -> None:
    few = {pair: each for pair, each in trips(halves).items() if {*pair} <= {"node0", "node1", "node4", "node5"}}
    assert leaves_by_latency(few) == {}


@given(st.dictionaries(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), st.lists(st.floats(), max_size=40)))
def test_whatever_is_read_each_node_of_a_leaf_has_a_neighbour(readings: dict[tuple[str, str], list[float]]) -> None:
    leaves = list(leaves_by_latency(readings).values())
    assert all(leaves.count(leaf) > 1 for leaf in leaves)


@pytest.mark.parametrize("seed", range(3))
def test_in_simulated_jobs_clear_leaves_are_found_and_others_are_not(seed: int) -> None:
    assert leaf_search(8, 4, 1.5, seed) == "right"
    assert leaf_search(8, 8, 1.0, seed) == leaf_search(8, 4, 1.02, seed) == "none"


def test_a_search_looks_now_and_then_leaves_out_what_others_slowed_down_and_finds_once() -> None:
    search = LeafSearch()
    slowed = [LinkReading(0, one, other, 0.03, 1, 1.0, 0.06) for one, other in permutations(NODES, 2)]
    clear = [LinkReading(0, *pair, 0.03, 1, each[0], 0.0) for pair, each in trips(halves).items()]
    found = [search.add_round([*clear, *slowed]) for _ in range(3 * EVERY)]
    assert found.index(True) == EVERY - 1
    assert found.count(True) == 1
    assert set(search.leaves) == set(NODES)
