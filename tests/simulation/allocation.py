"""The nodes of a simulated job: how the controller starts an agent on each, and ends what an agent has left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.processes import AGENT_MARK, end_marked
from laggard.resilience.allocation import base
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.errors import UnreachableNodesError
from tests.simulation.modules import Popen
from tests.simulation.pipes import Pipe
from tests.simulation.processes import Process, here

if TYPE_CHECKING:
    from tests.simulation.job import Job

__all__ = ["AgentHandle", "Allocation"]


class AgentHandle(base.ChildAgent):
    """What the controller holds of an agent: its process here, or the one here that leads to it."""

    def __init__(self, process: Process, commands: Pipe, answers: Pipe) -> None:
        popen: Any = Popen.__new__(Popen)
        popen.process, popen.pid = process, process.pid
        popen.stdin, popen.stdout = commands.writer, answers.reader
        super().__init__(popen)


class Manager(base.Unmanaged):
    """What Slurm says of the nodes: now and then that one is down, and it may take its time."""

    def words_on(self, hosts: Collection[str]) -> dict[str, NodeWord]:
        scheduler = here().scheduler
        scheduler.block(scheduler.chance.choice((0.01, 0.01, 3.0)))
        return {host: NodeWord("Slurm", host, "down") for host in hosts if scheduler.chance.random() < 0.1}


class Allocation(base.Allocation):
    """The nodes of a job, as ``laggard.resilience.allocation.Allocation``."""

    manager = Manager()

    def __init__(self, job: Job) -> None:
        self._job = job
        self.nodes = tuple(
            NodeRecord(host, f"10.0.0.{number}" if job.plan.remote else f"127.9.9.{number}", ())
            for number, host in enumerate(job.plan.hosts, 1)
        )
        self._marks = {host: f"{here().pid}-{host}" for host in job.plan.hosts}
        self._clearing: list[Process] = []

    def start_agent(self, node: NodeRecord) -> AgentHandle:
        host = node.hostname
        return self._job.start_agent(host, self._marks[host])

    def start_agent_again(self, node: NodeRecord) -> AgentHandle:
        host = node.hostname
        if self._is_here(host):
            base.clear_this_machine(node)
            return self.start_agent(node)
        scheduler = here().scheduler
        clearing = self._begin_to_clear(host)
        until_s = scheduler.now_s + 30.0
        while not clearing.ended and scheduler.now_s < until_s:
            scheduler.block(0.1)
        if clearing.exit_code != 0 or self._job.links[host].is_cut:
            raise UnreachableNodesError("no answer by ssh", {host: "no answer"}, ["true"])
        self._marks[host] = f"{self._marks[host].partition('.')[0]}.{scheduler.events}"
        return self.start_agent(node)

    def clear(self, node: NodeRecord) -> None:
        if self._is_here(node.hostname):
            base.clear_this_machine(node)
        else:
            self._clearing.append(self._begin_to_clear(node.hostname))

    def _is_here(self, host: str) -> bool:
        return host == self._job.plan.hosts[0] or not self._job.plan.remote

    def _begin_to_clear(self, host: str) -> Process:
        link, far = self._job.links[host], self._job.machine.hosts[host]
        process = Process(far, far.init, "clear", {})
        mark = self._marks[host]
        if link.is_cut:
            process.after(10.0, lambda: process.exit(255))
        else:
            link.carry(lambda: process.run(lambda: 0 if end_marked(AGENT_MARK, mark, 5.0) else 1), 0.0)
        return process

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        del node
        return []

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        del node, directory
        return {}

    def close(self) -> None:
        scheduler = here().scheduler
        until_s = scheduler.now_s + 10.0
        while scheduler.now_s < until_s and not all(process.ended for process in self._clearing):
            scheduler.block(0.1)
