"""The schedule of link probes: nobody is asked twice at a time, everybody is met, and all nodes agree."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.links.schedule import circle, partner_in, rounds_of, with_pairs

sizes = st.integers(0, 40)
seeds = st.text(max_size=10)


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(count)]


def test_a_circle_meets_everybody_once_in_as_few_sub_rounds_as_can_be() -> None:
    for count in range(40):
        sub_rounds = circle(names(count))
        met = Counter(frozenset(pair) for pair in chain(*sub_rounds))
        assert met == Counter(map(frozenset, combinations(names(count), 2)))
        assert len(sub_rounds) == max(0, count - 1 + count % 2)


@given(sizes, st.integers(1, 5), st.integers(1, 5), seeds)
def test_a_node_is_in_one_pair_of_a_sub_round_at_most(count: int, n_leaves: int, partners: int, seed: str) -> None:
    leaves = {node: f"leaf{number % n_leaves}" for number, node in enumerate(names(count))}
    for sub_rounds in map(rounds_of(names(count), seed, leaves, partners), range(10)):
        assert len(sub_rounds) <= partners
        for pairs in sub_rounds:
            assert max(Counter(chain(*pairs)).values(), default=1) == 1


@given(st.integers(2, 40), seeds, st.randoms(use_true_random=False))
def test_every_node_computes_the_same_schedule_in_whatever_order_it_lists_the_nodes(
    count: int, seed: str, shuffled: random.Random
) -> None:
    others = names(count)
    shuffled.shuffle(others)
    assert list(map(rounds_of(names(count), seed), range(5))) == list(map(rounds_of(others, seed), range(5)))


@given(st.integers(2, 16), seeds)
def test_up_to_16_nodes_meet_all_others_equally_often(count: int, seed: str) -> None:
    circle_length = count - 1 + count % 2
    rounds = list(map(rounds_of(names(count), seed), range(circle_length)))
    met = Counter(frozenset(pair) for pair in chain(*chain(*rounds)))
    assert set(met) == set(map(frozenset, combinations(names(count), 2)))
    assert len(set(met.values())) == 1


@given(st.integers(3, 16), st.integers(1, 5), seeds)
def test_no_two_nodes_meet_again_before_all_others_have_met(count: int, partners: int, seed: str) -> None:
    met = list(chain(*chain(*map(rounds_of(names(count), seed, partners=partners), range(count)))))
    pairs = list(combinations(names(count), 2))
    assert set(map(frozenset, met[: len(pairs)])) == set(map(frozenset, pairs))


def test_two_nodes_meet_as_often_in_a_round_as_others_meet_partners() -> None:
    for sub_rounds in map(rounds_of(names(2), "train 0"), range(3)):
        assert [[set(pair) for pair in pairs] for pairs in sub_rounds] == [[{"node0", "node1"}]] * 3


@given(st.integers(17, 60), seeds)
def test_more_nodes_keep_eight_partners(count: int, seed: str) -> None:
    partners = defaultdict(set)
    for one, other in chain(*chain(*map(rounds_of(names(count), seed), range(20)))):
        partners[one].add(other)
        partners[other].add(one)
    assert max(map(len, partners.values())) == 8
    assert min(map(len, partners.values())) >= 8 - count % 2


@given(st.integers(3, 6), st.integers(2, 12), seeds)
def test_in_each_round_a_node_has_partners_below_its_leaf_and_elsewhere(n_leaves: int, size: int, seed: str) -> None:
    leaves = {node: f"leaf{number // size}" for number, node in enumerate(names(n_leaves * size))}
    for sub_rounds in map(rounds_of(list(leaves), seed, leaves), range(6)):
        near, *far = sub_rounds
        assert all(leaves[one] == leaves[other] for one, other in near)
        assert all(leaves[one] != leaves[other] for one, other in chain(*far))
        assert len(near) == n_leaves * (size // 2)
        assert all(len(pairs) == len(leaves) // 2 for pairs in far)


@pytest.mark.parametrize(("partners", "near", "far"), [(1, 0, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3)])
def test_half_of_the_sub_rounds_join_nodes_below_one_leaf_and_of_an_odd_number_the_smaller_half(
    partners: int, near: int, far: int
) -> None:
    leaves = {node: f"leaf{number // 6}" for number, node in enumerate(names(12))}
    sub_rounds = rounds_of(list(leaves), "train 0", leaves, partners)(0)
    are_near = [all(leaves[one] == leaves[other] for one, other in pairs) for pairs in sub_rounds]
    assert are_near == [True] * near + [False] * far


@pytest.mark.parametrize("leaf", ["the same leaf", "leaf of {}"])
def test_leaves_that_tell_no_nodes_apart_or_all_of_them_change_nothing(leaf: str) -> None:
    leaves = {node: leaf.format(node) for node in names(9)}
    rounds, without = rounds_of(list(leaves), "train 0", leaves), rounds_of(list(leaves), "train 0")
    assert list(map(rounds, range(9))) == list(map(without, range(9)))


@pytest.mark.parametrize("size", [2, 3])
def test_one_leaf_with_two_nodes_is_enough_to_tell_near_from_far(size: int) -> None:
    leaves = {node: "leaf" if number < size else node for number, node in enumerate(names(7))}
    near = rounds_of(list(leaves), "train 0", leaves)(0)[0]
    assert [{leaves[one], leaves[other]} for one, other in near] == [{"leaf"}]


def test_of_many_nodes_each_keeps_four_partners_below_its_leaf_and_up_to_four_elsewhere() -> None:
    leaves = {node: f"leaf{number // 20}" for number, node in enumerate(names(40))}
    near: defaultdict[str, set[str]] = defaultdict(set)
    far: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in chain(*chain(*map(rounds_of(list(leaves), "train 0", leaves), range(40)))):
        for node, partner in ((one, other), (other, one)):
            (near if leaves[one] == leaves[other] else far)[node].add(partner)
    assert {len(near[node]) for node in leaves} == {4}
    assert max(len(far[node]) for node in leaves) == 4


@given(st.integers(2, 40), seeds, st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=6))
def test_pairs_that_are_to_meet_take_the_place_of_others(count: int, seed: str, wanted: list[tuple[int, int]]) -> None:
    pairs = [(f"node{one}", f"node{other}") for one, other in wanted if one != other and max(one, other) < count]
    for sub_rounds in map(rounds_of(names(count), seed), range(3)):
        found = with_pairs(sub_rounds, pairs)
        assert sum(map(len, found)) <= sum(map(len, sub_rounds))
        for each in found:
            assert max(Counter(chain(*each)).values(), default=1) == 1
        assert found[:-1] == sub_rounds[:-1]
        met = Counter(map(frozenset, chain(*found)))
        before = Counter(map(frozenset, chain(*sub_rounds)))
        assert all(times <= before.get(pair, 1) for pair, times in met.items())
        if pairs:
            assert frozenset(pairs[0]) in met
        apart = {node for pair in pairs for node in (*pair, *(partner_in(sub_rounds[-1], end) for end in pair))}
        assert [pair for pair in sub_rounds[-1] if apart.isdisjoint(pair)] == [
            pair for pair in found[-1] if apart.isdisjoint(pair)
        ]


def test_two_nodes_that_meet_out_of_turn_leave_their_partners_to_each_other() -> None:
    sub_rounds = [[("a", "b"), ("c", "d")], [("a", "c"), ("b", "e")]]
    assert with_pairs(sub_rounds, [("e", "a")]) == [sub_rounds[0], [("a", "e"), ("b", "c")]]
    assert with_pairs(sub_rounds, [("a", "d")]) == [sub_rounds[0], [("b", "e"), ("a", "d")]]  # c is without a partner
    assert with_pairs(sub_rounds, [("b", "a"), ("c", "b")]) == [sub_rounds[0], [("b", "c"), ("a", "e")]]
    assert with_pairs(sub_rounds, []) == sub_rounds


def test_a_node_meets_the_other_of_its_pair_and_nobody_where_it_has_none() -> None:
    pairs = [("a", "b"), ("c", "d")]
    assert [partner_in(pairs, node) for node in "abcde"] == ["b", "a", "d", "c", None]


def test_two_launches_draw_different_partners() -> None:
    first, second = (rounds_of(names(20), f"train {launch}")(0) for launch in (0, 1))
    assert first != second


def test_no_partner_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="partners must be at least 1, got 0"):
        rounds_of(names(3), "train 0", partners=0)
