"""A node whose heartbeats are held up on their way is no lost node as long as its agent can say so elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from laggard.kvstore.control import NodeRecord
from laggard.kvstore.server.process import StateServer
from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from tests.waiting import wait_until


@dataclass
class CarriedAgent:
    """An agent whose messages go through another process, as through ``srun``."""

    agent: subprocess.Popen[bytes]
    carrier: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.agent.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        return self.agent.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        return self.carrier.stdout

    def wait(self, timeout: float | None = None) -> int:
        return self.agent.wait(timeout)

    def kill(self) -> None:
        self.agent.kill()


class CarriedAllocation(LocalAllocation):
    """Virtual nodes whose agents are carried."""

    agents: dict[str, CarriedAgent]

    def start_agent(self, node: NodeRecord) -> AgentProcess:  # type: ignore[override]
        agent = super().start_agent(node)
        carrier = subprocess.Popen(["cat"], stdin=agent.stdout, stdout=subprocess.PIPE)
        assert agent.stdout is not None
        agent.stdout.close()
        self.agents[node.hostname] = CarriedAgent(agent, carrier)
        return self.agents[node.hostname]


@pytest.fixture
def allocation() -> Iterator[CarriedAllocation]:
    allocation = CarriedAllocation(2, 1)
    allocation.agents = {}
    yield allocation
    for each in allocation.agents.values():
        each.carrier.kill()
        each.carrier.wait()


class Patient(Cluster):
    confirmed_s = 4.0  # a busy machine may hold up the agent itself for a while


def test_a_node_whose_heartbeats_are_held_up_is_kept_until_its_agent_is_frozen(
    allocation: CarriedAllocation, tmp_path: Path
) -> None:
    (tmp_path / "nodes").mkdir(mode=0o700)
    with StateServer.start(tmp_path / "state", job="a") as server:
        files = NodeFiles({"endpoint.json": server.endpoint.to_json()}, {})
        cluster = Patient(allocation, tmp_path / "nodes", files, threading.Condition())
        cluster.confirm_by(server.endpoint)
        cluster.start(Roster(("node1", "node2")))
        try:
            wait_until(lambda: all(node.agent.has_started for node in cluster.nodes.values()))
            held = allocation.agents["node2"]
            os.kill(held.carrier.pid, signal.SIGSTOP)
            node = cluster.nodes["node2"]
            with server.endpoint.connect() as client:

                def count() -> int:
                    assert cluster.lost() == []
                    return int(client.hget(server.endpoint.key("agents"), "node2") or 0)

                # Raised twice a second, so by now it was silent for longer than it may be.
                wait_until(lambda: count() >= 8 and cluster._silence(node).silent_s > 1.2 * cluster.heartbeat_timeout_s)
                assert client.hget(server.endpoint.key("agents"), "node1") is None
            os.kill(held.agent.pid, signal.SIGSTOP)
            wait_until(lambda: cluster.lost() == ["node2"])
        finally:
            for each in allocation.agents.values():
                os.kill(each.carrier.pid, signal.SIGCONT)
            cluster.stop()
