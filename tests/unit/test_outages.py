"""Asking a node what answers, and following an outage, on nodes that stand in for real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import NodeRecord
from laggard.resilience.controller.outages import ANSWER_DEADLINE_S, FIRST_LOOK_S, LOOK_EVERY_S, Outages
from laggard.resilience.decision.events import OutageEnded, OutageTooLong
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.outage import FIRST_WAIT_S, LONGEST_WAIT_S
from laggard.resilience.decision.roster import Roster
from laggard.resilience.reading.signatures import Kind
from laggard.resilience.reading.targets import NoAnswer, Target, Unanswered

SERVICE, LOCAL = Target("port", "db.site", 5432), Target("port", "127.0.0.1", 5432)
REFUSED = NoAnswer("refused")
ROSTER = Roster(("n1", "n2"), ())


class Checks:
    """A node's checks: answers as it is told, or not at all."""

    def __init__(self) -> None:
        self.away: set[Target] | None = set()  # None: it does not answer
        self.asked: list[Sequence[Target]] = []
        self.answers: Sequence[NoAnswer | None] | None = ()
        self.connections: Sequence[Target] | None = None
        self.seen: Sequence[Target] = ()

    def ask_targets(self, targets: Sequence[Target], own: Sequence[str]) -> None:
        assert "10.0.0.1" in own
        self.asked.append(targets)
        self.answers = None if self.away is None else [REFUSED if each in self.away else None for each in targets]

    def list_connections(self, program: int | None) -> None:
        del program
        self.connections = self.seen


@dataclass
class Node:
    record: NodeRecord
    checks: Checks = field(default_factory=Checks)


class Site:
    """Two nodes, a clock, and what asks them."""

    def __init__(self) -> None:
        self.nodes = {f"n{i}": Node(NodeRecord(f"n{i}", f"10.0.0.{i}", ())) for i in (1, 2)}
        self.now_s = 100.0
        endpoint = Endpoint("127.0.0.1", 6000, "job", "secret")
        self.outages = Outages(cast("Any", self), "n1", endpoint, 7200.0, lambda: self.now_s, lambda: self.now_s)

    def wait_for(self, done: Callable[[], bool], deadline_s: float) -> bool:
        assert deadline_s == ANSWER_DEADLINE_S
        return done()

    def find(self, *named: Target, kind: Kind = "network") -> Unanswered | None:
        failure = Failure("n2", 1, 7, 1, 1, 0.0, 9.0, "odd", "", kind, "")
        return self.outages.find(failure, named, passed=False)

    def look(self, outage: Unanswered, after_s: float) -> OutageEnded | OutageTooLong | None:
        self.now_s += after_s
        return self.outages.look(outage, outage.since_s)

    def run_for(self, seconds: float) -> None:
        self.now_s += seconds
        self.outages.note_connections(ROSTER, None)


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_node_that_failed_is_asked_and_what_answers_is_no_outage(site: Site) -> None:
    assert site.find(SERVICE) is None
    site.nodes["n2"].checks.away = {SERVICE}
    assert site.find(SERVICE) == Unanswered(SERVICE, REFUSED, "n2", 100.0)
    assert site.nodes["n1"].checks.asked == []


def test_a_node_that_says_nothing_leaves_it_open(site: Site) -> None:
    site.nodes["n2"].checks.away = None
    assert site.find(SERVICE) is None


def test_a_place_on_the_node_counts_once_it_is_named_again(site: Site) -> None:
    site.nodes["n2"].checks.away = {LOCAL, Target("port", "127.0.0.1", 5433)}
    assert site.find(LOCAL) is None
    assert site.find(Target("port", "127.0.0.1", 5433)) is None  # each launch has one of its own
    assert site.find(LOCAL) is None
    assert site.find(LOCAL) is not None


def test_what_launches_were_connected_to_is_asked_if_nothing_is_named(site: Site) -> None:
    checks = site.nodes["n2"].checks
    state_server, peer = Target("port", "127.0.0.1", 6000), Target("port", "10.0.0.1", 4000)
    checks.seen = [LOCAL, state_server, peer]
    site.outages.begin()
    site.run_for(0.9 * FIRST_LOOK_S)
    assert checks.connections is None
    site.run_for(0.2 * FIRST_LOOK_S)
    checks.away = {LOCAL, state_server, peer}
    assert site.find(kind="program") is None
    assert site.find() == Unanswered(LOCAL, REFUSED, "n2", site.now_s)
    assert checks.asked == [[LOCAL]]
    assert site.find(LOCAL) is not None  # it has been seen outside of the job


def test_looks_are_half_a_minute_apart(site: Site) -> None:
    checks = site.nodes["n1"].checks
    site.outages.begin()
    site.run_for(FIRST_LOOK_S)
    checks.connections = None
    site.run_for(0.9 * LOOK_EVERY_S)
    assert checks.connections is None
    site.run_for(0.2 * LOOK_EVERY_S)
    assert checks.connections is not None


def test_an_outage_is_over_at_the_second_answer_and_asked_from_the_primary_if_the_node_is_lost(site: Site) -> None:
    site.nodes["n2"].checks.away = {SERVICE}
    outage = site.find(SERVICE)
    assert outage is not None
    assert site.look(outage, FIRST_WAIT_S) is None
    assert site.look(outage, 0.1) is None
    del site.nodes["n2"]
    assert site.look(outage, LONGEST_WAIT_S) is None
    assert site.look(outage, 0.1) is None
    assert site.look(outage, FIRST_WAIT_S) is None
    assert site.look(outage, 0.1) == OutageEnded(outage, site.now_s - 100.0)


def test_a_wait_has_an_end(site: Site) -> None:
    site.nodes["n2"].checks.away = {SERVICE}
    outage = site.find(SERVICE)
    assert outage is not None
    site.nodes["n2"].checks.away = None  # its agent does not answer any more
    assert site.look(outage, 7259.0) is None
    assert site.look(outage, 0.5) is None
    assert site.look(outage, ANSWER_DEADLINE_S) == OutageTooLong(outage, site.now_s - 100.0)
