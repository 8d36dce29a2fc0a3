"""One command starts the agents of many nodes, and none of them depends on it, or on another, once they run."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from laggard.resilience.agent.processes import AGENT_MARK, environment_of
from laggard.resilience.allocation.agent_listener import AgentListener
from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.discovery import DialledAgent
from laggard.resilience.allocation.remote import RemoteAllocation
from laggard.resilience.allocation.step import StepAgent
from laggard.resilience.decision.reasons import WhyLost
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import AllocationError, UnreachableNodesError
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from laggard.resilience.nodes.node import Node
from tests.waiting import wait_until

FAKE_SRUN = Path(__file__).with_name("fake_srun.py")


class FakeSlurm(Transport):
    """Starts everything on this machine."""

    name = "srun"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        refused = "echo 'fake srun: error: no such node' >&2; exit 1"
        return ["sh", "-c", refused] if host == "unreachable" else ["env", f"SLURMD_NODENAME={host}", *argv]

    def commands_together(self, hosts: Sequence[str], argv: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        return {tuple(hosts): [sys.executable, str(FAKE_SRUN), ",".join(hosts), *argv]}

    def environment(self) -> dict[str, str]:
        return {}


class Job:
    """The agents of some nodes, the first of which is the primary."""

    def __init__(
        self,
        folder: Path,
        *hosts: str,
        may_miss: int = 0,
        kind: type[RemoteAllocation] = RemoteAllocation,
    ) -> None:
        self.hosts = hosts
        self.allocation = kind(dict.fromkeys(hosts, "127.0.0.1"), FakeSlurm(), 1)
        self.missing = self.allocation.discover(may_miss)
        self.cluster = Cluster(self.allocation, folder / "nodes", NodeFiles({}, {}), threading.Condition())
        self.cluster.start(Roster(hosts), self.missing)
        wait_until(lambda: all(node.agent.has_started for node in self.cluster.nodes.values()))

    @property
    def srun(self) -> psutil.Process:
        (step,) = self.allocation._steps
        return psutil.Process(step.process.pid)

    def agent(self, host: str) -> DialledAgent:
        agent = self.node(host).agent._process
        assert isinstance(agent, DialledAgent)
        return agent

    def node(self, host: str) -> Node:
        return self.cluster.nodes[host]

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return what has each node's mark."""
        found: dict[str, list[psutil.Process]] = {host: [] for host in self.hosts}
        for process in psutil.process_iter():
            mark, _, host = environment_of(process).get(AGENT_MARK, "").partition("-")
            if mark.partition(".")[0] == self.allocation._mark and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(host, []).append(process)
        return found

    def expect_answers(self, *hosts: str) -> None:
        for host in hosts:
            self.node(host).checks.ping()
        wait_until(lambda: all(self.node(host).checks.answered for host in hosts))

    def stop(self) -> None:
        self.cluster.stop()
        wait_until(lambda: not any(self.processes().values()), lambda: str(self.processes()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nodes").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def job(folder: Path) -> Iterator[Job]:
    job = Job(folder, "a", "b", "c", "d")
    yield job
    job.stop()


def test_one_command_starts_all_agents_and_ends_with_them(folder: Path) -> None:
    job = Job(folder, "a", "b", "c")
    srun = job.srun
    assert job.missing == {}
    assert [job.agent(host).pid for host in ("b", "c")] == [srun.pid] * 2
    assert [len(job.processes()[host]) for host in ("b", "c")] == [1, 1], "each has a mark of its own"
    job.expect_answers("a", "b", "c")
    job.stop()
    assert not srun.is_running()
    assert job.allocation._steps[0].process.returncode == 0


def test_an_agent_that_is_killed_is_lost_alone_and_can_come_back(job: Job) -> None:
    (agent,) = job.processes()["c"]
    agent.kill()
    wait_until(lambda: job.cluster.lost() == ["c"])
    assert job.cluster.why_lost("c") == WhyLost("ended")
    job.cluster.remove("c")
    job.expect_answers("b", "d")
    record = job.allocation.nodes[2]
    job.cluster.take_back(job.cluster.connect(record, job.allocation.start_agent_again(record)))
    job.expect_answers("b", "c", "d")
    assert not isinstance(job.agent("c"), StepAgent)
    assert len(job.processes()["c"]) == 1


def test_agents_outlive_the_command_that_has_started_them(job: Job) -> None:
    job.srun.kill()
    job.allocation._steps[0].process.wait()
    for host in ("b", "c", "d"):
        job.agent(host).channel.detach()  # each dials again
    job.expect_answers("b", "c", "d")
    assert job.cluster.lost() == []


def test_a_command_that_cannot_reach_a_node_costs_only_that_node(folder: Path) -> None:
    job = Job(folder, "a", "b", "unreachable", "c", may_miss=1)
    assert job.missing == {"unreachable": "no answer by srun (fake srun: error: no such node)"}
    job.expect_answers("b", "c")
    assert not any(isinstance(job.agent(host), StepAgent) for host in ("b", "c"))
    job.stop()


class Impatient(RemoteAllocation):
    launch_s = 0.5
    refusal_s = 1.0


def test_a_command_that_hangs_is_given_up(folder: Path) -> None:
    job = Job(folder, "a", "b", "hanging", kind=Impatient)
    job.expect_answers("b", "hanging")
    job.stop()


def test_if_too_few_answer_nothing_is_left() -> None:
    with pytest.raises(UnreachableNodesError, match="no answer by srun from unreachable"):
        Impatient(dict.fromkeys(("a", "b", "unreachable"), "127.0.0.1"), FakeSlurm(), 1).discover()


def test_agents_that_cannot_dial_are_named_and_leave_no_primary_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    token = AgentListener._token
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens there
        port = closed.getsockname()[1]
        monkeypatch.setattr(AgentListener, "_token", lambda *given: replace(token(*given), port=port))
        with pytest.raises(AllocationError, match=f"^b, c cannot reach a:{port}: is there a firewall[?] --port-range"):
            Impatient(dict.fromkeys(("a", "b", "c"), "127.0.0.1"), FakeSlurm(), 1).discover(may_miss=2)
