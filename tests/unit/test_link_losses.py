"""Nodes and pairs that no longer reach each other."""

from __future__ import annotations

from itertools import permutations

from laggard.detectors.links.losses import LinkLosses, Losses

NODES = "abcd"
ALL = set(permutations(NODES, 2))
NONE = Losses({}, {})


def without(*lost: tuple[str, str]) -> tuple[set[tuple[str, str]], dict[tuple[str, str], str]]:
    """Return a round in which these transfers failed, and the others were made."""
    return ALL - set(lost), dict.fromkeys(lost, "no answer in time")


def of(node: str) -> list[tuple[str, str]]:
    """Return what a node's peers say once its cable is pulled: it can say nothing itself."""
    return [(other, node) for other in NODES if other != node]


def cut(node: str) -> tuple[set[tuple[str, str]], dict[tuple[str, str], str]]:
    """Return a round in which a node's cable is pulled."""
    done, failed = without(*of(node))
    return {pair for pair in done if node not in pair}, failed


def test_a_node_that_nobody_reaches_any_more_is_told_once_after_two_rounds() -> None:
    losses = LinkLosses()
    assert losses.add_round(*without()) == NONE
    assert losses.add_round(*cut("c")) == NONE
    assert losses.add_round(*cut("c")) == Losses({"c": "no answer in time"}, {})
    assert losses.add_round(*cut("c")) == NONE


def test_a_node_that_is_back_and_lost_again_is_told_again() -> None:
    losses = LinkLosses()
    for round_ in (without(), cut("c"), without(), cut("c")):
        assert losses.add_round(*round_) == NONE
    assert losses.add_round(*cut("c")).nodes.keys() == {"c"}


def test_a_node_that_was_never_reached_is_not_lost() -> None:
    losses = LinkLosses()
    assert [losses.add_round(*cut("c")) for _ in range(3)] == [NONE] * 3


def test_a_pair_of_nodes_that_others_reach_is_told_as_a_pair() -> None:
    losses = LinkLosses()
    lost = without(("b", "a"), ("a", "b"))
    assert losses.add_round(*lost) == NONE
    assert losses.add_round(*lost) == Losses({}, {("a", "b"): "no answer in time"})
    assert losses.add_round(*lost) == NONE


def test_nobody_is_lost_if_nobody_reaches_anybody() -> None:
    losses = LinkLosses()
    losses.add_round(*without())
    everybody = set[tuple[str, str]](), dict.fromkeys(ALL, "refused")
    assert [losses.add_round(*everybody) for _ in range(3)] == [NONE] * 3


def test_of_three_nodes_the_one_that_two_do_not_reach_is_lost() -> None:
    losses = LinkLosses()
    losses.add_round(set(permutations("abc", 2)), {})
    pulled = {("a", "c"): "refused", ("b", "c"): "refused"}
    assert [losses.add_round({("a", "b"), ("b", "a")}, pulled).nodes for _ in range(2)] == [{}, {"c": "refused"}]


def test_of_two_nodes_none_is_lost() -> None:
    losses = LinkLosses()
    losses.add_round({("a", "b"), ("b", "a")}, {})
    assert [losses.add_round(set(), {("a", "b"): "refused"}) for _ in range(3)] == [NONE] * 3
