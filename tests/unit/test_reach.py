"""Which nodes a firewall keeps from State, when they are named, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.target_check import CONNECT_S
from laggard.resilience.controller.reach import ANSWER_S, NAMED_S, who_cannot_reach
from laggard.resilience.controller.wording import cut_off
from laggard.resilience.reading.targets import NoAnswer, Target
from laggard.system.ports import VARIABLE

PRIMARY = NodeRecord("node1", "10.0.0.1", ())
OURS, SITES = Endpoint("10.0.0.1", 6390, "job", "secret"), Endpoint("10.0.0.9", 6379, "job", "secret")
ADVICE = " --port-range names the ports that it lets through"


@pytest.mark.parametrize(
    ("server", "ports", "says"),
    [
        (OURS, "", f"node1:6390, where State is: is there a firewall?{ADVICE}"),
        (OURS, "60900-60999", "node1:6390, where State is: is there a firewall?"),
        (SITES, "", "10.0.0.9:6379, where State is: is there a firewall?"),
    ],
    ids=["on the primary", "with a range", "the site's own server"],
)
def test_a_range_of_ports_is_advised_where_it_would_help(
    server: Endpoint, ports: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ports)
    assert cut_off(["node2"], server, PRIMARY) == f"node2 cannot reach {says}"


@dataclass(frozen=True)
class Says:
    """What a node answers to a question, and after how long."""

    reaches: bool
    after_s: float


@dataclass
class Checks:
    """A node's checks, on the site's clock."""

    site: Site
    says: list[Says]
    asked_s: float | None = None

    def ask_targets(self, targets: Sequence[Target], own: Sequence[str]) -> None:
        assert [(each.kind, each.host, each.port) for each in targets] == [("port", OURS.host, OURS.port)]
        assert not own
        self.asked_s, self.answer = self.site.now_s, self.says.pop(0)

    @property
    def answers(self) -> Sequence[NoAnswer | None] | None:
        if self.asked_s is None:
            return ()
        if self.site.now_s < self.asked_s + self.answer.after_s:
            return None
        return (None if self.answer.reaches else NoAnswer("timed out"),)


@dataclass
class OtherNode:
    record: NodeRecord
    checks: Checks


@dataclass
class Site:
    """Nodes whose answers take their time; the clock only moves while they are waited for."""

    now_s: float = 0.0
    nodes: dict[str, OtherNode] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def add(self, *says: Says) -> None:
        name = f"node{len(self.nodes) + 1}"
        self.nodes[name] = OtherNode(NodeRecord(name, f"10.0.0.{len(self.nodes) + 1}", ()), Checks(self, [*says]))

    def lost(self) -> list[str]:
        return [*self.gone]

    def wait_for(self, done: Callable[[], bool], deadline_s: float) -> bool:
        until_s = self.now_s + deadline_s
        while not done() and self.now_s < until_s:
            self.now_s += 0.25
        return done()

    def named(self) -> list[str]:
        return who_cannot_reach(OURS, cast("Any", self), "node1", lambda: self.now_s)


DROPPED, REJECTED = Says(reaches=False, after_s=CONNECT_S + 1.0), Says(reaches=False, after_s=1.0)
REACHES, SILENT = Says(reaches=True, after_s=1.0), Says(reaches=True, after_s=float("inf"))


@pytest.mark.parametrize(
    ("says", "lost", "named", "after_s"),
    [
        ((REACHES,), False, [], 1.0),
        ((DROPPED, DROPPED), False, ["node2"], NAMED_S),
        ((REJECTED, REJECTED), False, ["node2"], 2.0),
        ((DROPPED, REACHES), False, [], CONNECT_S + 2.0),
        ((REJECTED, SILENT), False, ["node2"], NAMED_S),
        ((SILENT,), False, [], ANSWER_S),
        ((SILENT,), True, [], 0.0),
    ],
    ids=["reaches", "drop", "reject", "packets were lost", "then silent", "silent", "lost"],
)
def test_a_node_that_is_cut_off_is_named_within_ten_seconds(
    says: Sequence[Says], lost: bool, named: Sequence[str], after_s: float
) -> None:
    site = Site(gone=frozenset({"node2"} if lost else ()))
    site.add()
    site.add(*says)
    assert site.named() == named
    assert site.now_s == after_s


ANSWERS = st.builds(Says, st.booleans(), st.sampled_from([0.25, 1.0, 4.0, 4.5, 6.0, 12.0, float("inf")]))


@given(st.lists(st.tuples(ANSWERS, ANSWERS), max_size=4))
def test_whatever_nodes_answer_it_takes_no_longer_than_the_slowest_first_answer_and_one_more_try(
    says: Sequence[tuple[Says, Says]],
) -> None:
    site = Site()
    site.add()
    for each in says:
        site.add(*each)
    named = site.named()
    firsts = [first.after_s for first, _ in says]
    assert site.now_s <= max(NAMED_S, min(max(firsts, default=0.0), ANSWER_S) + CONNECT_S)
    for number, (first, second) in enumerate(says, 2):
        if f"node{number}" in named:
            assert not first.reaches
        elif not first.reaches and first.after_s <= ANSWER_S:
            assert second.reaches
