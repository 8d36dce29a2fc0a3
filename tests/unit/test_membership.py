"""Nodes that a cluster gives and takes, and when others are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from laggard.kvstore.control import NodeRecord
from laggard.resilience.controller.membership import Membership
from laggard.resilience.decision.events import NodeJoined, NodeLeaving, Settings
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Exclusion, Roster


class Manager:
    """What a cluster says about itself, and what it was asked for."""

    def __init__(self) -> None:
        self.newcomers: list[NodeRecord] = []
        self.drained: dict[str, NodeWord] = {}
        self.asked: list[tuple[int, list[str]]] = []

    def joined(self) -> list[NodeRecord]:
        newcomers, self.newcomers = self.newcomers, []
        return newcomers

    def leaving(self) -> dict[str, NodeWord]:
        return self.drained

    def ask_for(self, n_more: int, beside: Iterable[str]) -> None:
        self.asked.append((n_more, list(beside)))


def membership(*, resilient: bool = True) -> tuple[Manager, Membership, list[str]]:
    manager: Any = Manager()
    taken_in: list[str] = []
    settings = Settings(2, resilient=resilient)
    return manager, Membership(manager, settings, lambda node: taken_in.append(node.hostname)), taken_in


def test_nodes_that_join_come_in_one_by_one_and_only_where_they_can_be_used() -> None:
    manager, nodes, taken_in = membership()
    manager.newcomers = [NodeRecord("n4", "10.0.0.4", ("0",)), NodeRecord("n5", "10.0.0.5", ())]
    roster = Roster(("n1", "n2"))
    assert nodes.next_event(roster) == NodeJoined("n4", has_devices=True)
    assert nodes.next_event(roster) == NodeJoined("n5", has_devices=False)
    assert nodes.next_event(roster) is None
    assert taken_in == ["n4", "n5"]
    manager, nodes, taken_in = membership(resilient=False)
    manager.newcomers = [NodeRecord("n4", "10.0.0.4", ("0",))]
    assert nodes.next_event(roster) is None
    assert not taken_in


def test_a_node_that_leaves_is_told_of_once_and_only_while_it_is_in_use() -> None:
    manager, nodes, _ = membership()
    manager.drained = {host: NodeWord("Ray", host, "draining") for host in ("n2", "n3", "n9")}
    roster = Roster(("n1", "n2"), ("n3",))
    assert nodes.next_event(roster) == NodeLeaving("n2", NodeWord("Ray", "n2", "draining"))
    assert nodes.next_event(roster) is None


def test_others_are_asked_for_when_the_reserve_is_used_up_and_again_when_more_are_gone() -> None:
    manager, nodes, _ = membership()
    nodes.ask_for_replacements(Roster(("n1", "n2"), ("n3",)))
    swapped = Roster(("n1", "n3"), (), (Exclusion("n2", 0.0),))
    nodes.ask_for_replacements(swapped)
    nodes.ask_for_replacements(swapped)
    assert manager.asked == [(1, ["n1", "n3", "n2"])]  # n2 is slow, but it is there
    alone = Roster(("n1",), (), (Exclusion("n2", 0.0), Exclusion("n3", 0.0, lost=True)))
    manager.drained = {"n2": NodeWord("Ray", "n2", "draining")}
    nodes.ask_for_replacements(alone)
    assert manager.asked[1:] == [(2, ["n1"])]
    nodes.ask_for_replacements(Roster((), (), primary="n1"))
    assert manager.asked[2:] == [(3, [])]


def test_nobody_is_asked_for_where_nobody_is_gone_or_used() -> None:
    manager, nodes, _ = membership()
    nodes.ask_for_replacements(Roster(("n1", "n2")))
    manager_of_others, others, _ = membership(resilient=False)
    others.ask_for_replacements(Roster(("n1", "n2")))
    others.ask_for_replacements(Roster(("n1",)))
    assert manager.asked == manager_of_others.asked == []
