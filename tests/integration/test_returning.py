"""Nodes that were lost come back: real jobs, real agents, a real state server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from laggard.collectors.device import VirtualDevice
from laggard.collectors.probe_metrics import RESERVE_PROBE_TIME
from laggard.collectors.probes import WRONG
from laggard.kvstore.control import NodeRecord
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.server.process import StateServer
from laggard.resilience.allocation.base import ChildAgent, Unmanaged
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.controller import wording
from laggard.resilience.controller.records import Records
from laggard.resilience.controller.reserve import Reserve
from laggard.resilience.controller.returning import FIRST_WAIT_S, Returning
from laggard.resilience.decision.events import NodeReturned
from laggard.resilience.decision.evidence import Finding, GpuHealth, NodeCheck
from laggard.resilience.decision.ledger import Incident
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.errors import AllocationError
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from laggard.system.steady_clock import SteadyClock
from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

Start = Callable[..., RunningJob]


def test_exclusions_of_other_nodes_stay_as_they_are(state_server: StateServer) -> None:
    records = Records(state_server.endpoint)
    records.next_launch()
    records.write_exclusions([Exclusion("node2", 1700000000.5)], set())
    assert records.read_exclusions() == [Exclusion("node2", 1700000000.5)]
    third = Exclusion("node3", 1700000001.0, lost=True, count=3)
    records.write_exclusions([third], {"node1", "node3"})
    assert records.read_exclusions() == [Exclusion("node2", 1700000000.5), third]


def test_the_ledger_of_other_nodes_stays_as_it_is(state_server: StateServer) -> None:
    records = Records(state_server.endpoint)
    assert records.read_ledger() == []
    records.next_launch()
    elsewhere, *here = [
        Incident("elsewhere", 1.0, 4.0),
        Incident("node2", 2.0, 0.3, "1", {"node2": 3}, is_loss=True),
        Incident("node2", 3.0, 0.03),
    ]
    records.write_ledger([elsewhere, *here], {"elsewhere", "node2"})
    records.write_ledger(here[:1], {"node2"})
    assert records.read_ledger() == [elsewhere, here[0]]


class Meteorologist(Unmanaged):
    """Knows why nodes are down."""

    def words_on(self, hosts: Collection[str]) -> dict[str, NodeWord]:
        return {host: NodeWord("Slurm", host, "down", "rain") for host in hosts}


class Unreachable(LocalAllocation):
    """Nodes whose agents cannot be started anew until ``mended``; their manager knows why."""

    manager = Meteorologist()
    mended = threading.Event()

    def start_agent_again(self, node: NodeRecord) -> ChildAgent:
        if not self.mended.is_set():
            raise AllocationError("no answer by pigeon")
        return super().start_agent_again(node)


class Site:
    """A cluster of two virtual nodes, and what brings them back."""

    def __init__(
        self, allocation: LocalAllocation, directory: Path, server: StateServer, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        self.changed = threading.Condition()
        launch = Records(server.endpoint).next_launch()
        self.host = allocation.nodes[1].hostname
        self.series = Series(server.endpoint.connect(), server.endpoint, launch, self.host)
        files = NodeFiles({"endpoint.json": server.endpoint.to_json()}, {})
        self.cluster = Cluster(allocation, directory / "nodes", files, self.changed)
        self.cluster.start(Roster((), primary=allocation.nodes[0].hostname))
        wait_until(lambda: all(node.agent.has_started for node in self.cluster.nodes.values()))
        reserve, clock = Reserve(server.endpoint), SteadyClock()
        self.returning = Returning(allocation, self.cluster, reserve, self.changed, clock, first_wait_s)

    def lose(self) -> None:
        """Lose the second node, and begin to bring it back."""
        self.cluster.remove(self.host)
        self.returning.bring_back(self.host)

    def event(self, *excluded: Exclusion) -> NodeReturned:
        """Wait for a node to return."""
        found: list[NodeReturned] = []
        roster = Roster(("node1",), (), excluded)

        def look() -> bool:
            found.extend(filter(None, [self.returning.next_event(roster, 1.0, urgent=True)]))
            return bool(found)

        wait_until(look)
        return found[0]

    def close(self) -> None:
        self.returning.close()
        self.cluster.stop()


@pytest.fixture
def site(state_server: StateServer, tmp_path: Path) -> Iterator[Callable[[LocalAllocation], Site]]:
    sites: list[Site] = []

    def build(allocation: LocalAllocation) -> Site:
        sites.append(Site(allocation, tmp_path, state_server))
        return sites[-1]

    yield build
    for each in sites:
        each.close()


def test_a_lost_node_has_a_new_agent_when_it_is_back(site: Callable[[LocalAllocation], Site]) -> None:
    here = site(LocalAllocation(2, 0))
    before = here.cluster.nodes[here.host]
    here.lose()
    assert here.event() == NodeReturned(here.host)
    assert here.cluster.nodes[here.host] is not before
    assert here.cluster.lost() == []


def test_a_node_that_comes_back_with_a_gpu_less_is_not_fit(site: Callable[[LocalAllocation], Site]) -> None:
    here = site(LocalAllocation(2, 0))
    here.cluster.nodes[here.host].checks.first = NodeCheck(0.0, {"9": GpuHealth()})
    here.lose()
    assert here.event() == NodeReturned(here.host, (Finding("gpu gone", "9"),))


def test_a_node_that_cannot_be_reached_is_tried_again_and_the_user_is_told_why(
    state_server: StateServer, tmp_path: Path
) -> None:
    here = Site(Unreachable(2, 0), tmp_path, state_server, first_wait_s=0.1)
    here.lose()
    roster = Roster(("node1",))
    wait_until(lambda: here.returning.next_event(roster, 1.0, urgent=True) or here.returning.notices)
    told = "node2 is not back: no answer by pigeon; Slurm says node2 is down: rain; the next attempt is in 0.1 s"
    assert list(map(wording.not_back, here.returning.notices)) == [told]
    Unreachable.mended.set()
    assert here.event() == NodeReturned("node2")
    assert list(map(wording.not_back, here.returning.notices)) == [told]
    here.close()


def test_a_device_that_computes_wrong_results_after_its_quarantine_keeps_its_node_out(
    site: Callable[[LocalAllocation], Site],
) -> None:
    here = site(LocalAllocation(2, 1))
    over = Exclusion(here.host, time.time() - 60)
    assert here.event(over) == NodeReturned(here.host)
    here.cluster.nodes[here.host].tasks.stop_sidecar("reserve-probe")
    wrong = Sample(
        RESERVE_PROBE_TIME,
        0.0,
        (0.1,),
        {"host": here.host, "gpu": "0", "model": VirtualDevice.model, WRONG: "3 wrong results"},
    )
    here.cluster.nodes[here.host].tasks.start_sidecar("reserve-probe", ["sleep", "1000"])
    assert here.returning.next_event(Roster(("node1",), (), (over,)), 1.0, urgent=False) is None
    here.series.add([wrong])
    assert "3 wrong results" in str(here.event(over).faults[0].slow)
