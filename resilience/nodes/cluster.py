"""The nodes of a job: an agent on each, from the start to the end of the job.

Between two launches only what must change is changed: the good nodes stay up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from laggard.kvstore.client.connection import is_loopback
from laggard.kvstore.client.environment import ENDPOINT_FILE, NODE
from laggard.kvstore.control import NodeRecord
from laggard.logs import ends_of_logs
from laggard.resilience.agent.awake import AwakeClock
from laggard.resilience.allocation import Allocation
from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.decision import wording
from laggard.resilience.decision.evidence import NodeCheck
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.reasons import NodeWord, StuckProcesses, WhyLost
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.stacks import RankStack
from laggard.resilience.errors import LeftoversError, NodeDownError, ProcessesStillRunningError
from laggard.resilience.nodes.node import Node
from laggard.resilience.nodes.notices import Notice
from laggard.resilience.nodes.waiting import wait_for
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from laggard.resilience.wire.node import SetUp
from laggard.system.clock_offset import ClockOffset
from laggard.system.ports import VARIABLE as PORT_RANGE
from laggard.system.ports import port_range

RAY_ADDRESS = "RAY_ADDRESS"
_log = logging.getLogger("laggard.resilience.nodes")

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 8.0
# An agent that is busy ending processes answers when it is done.
ANSWER_DEADLINE_S = 20.0
LOGS_DEADLINE_S = 5.0
CHECK_WAIT_S = 3.0
STACKS_WAIT_S = 12.0
# More agents than these are not silent at once but for a common reason: all dial again.
N_SILENT = 250
# Virtual nodes share one machine: to check a hundred of them at once takes long and says little.
MAX_VIRTUAL_CHECKS = 8


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """What a node needs before it starts anything: private files by name, and environment variables."""

    files: dict[str, str]  # for all nodes
    environment: dict[str, str]
    # Returns further files, which differ from node to node
    of_node: Callable[[NodeRecord], dict[str, str]] = lambda _: {}


class Cluster:
    """Agents on the nodes of an allocation, and nothing else: for programs that do their own communication."""

    def __init__(self, allocation: Allocation, directory: Path, setup: NodeFiles, changed: threading.Condition) -> None:
        self._allocation = allocation  # the nodes, and how to start a process on each
        # Private folder for the nodes' files; its path must be short, since sockets are created below it
        self._directory = directory
        self._changed = changed  # notified at every change that an agent reports
        self._primary = allocation.nodes[0]
        self._numbers = {node.hostname: number for number, node in enumerate(allocation.nodes, 1)}
        self._setup = setup  # files and variables for every node
        self._timing = HeartbeatTiming(len(allocation.nodes))
        self.heartbeat_timeout_s = self._timing.timeout_s  # an agent that is silent for longer counts as lost
        self._awake_clock = AwakeClock()
        self._counted_s = 0.0  # when it was counted last how many agents are silent
        self._crowded_s = -math.inf  # when too many were, last
        self._first_checks: dict[str, NodeCheck] = {}  # of nodes that were lost
        self.nodes: dict[str, Node] = {}  # the nodes that are not lost, by host name

    def environment(self, node: NodeRecord) -> dict[str, str]:
        """Return the variables by which a process on a node finds its cluster, its job and its devices."""
        directory = self._node_directory(node)
        variables = {
            **self._setup.environment,
            **self._ports_of(node),
            NODE: node.hostname,
            ENDPOINT_FILE: str(directory / "endpoint.json"),
            RAY_ADDRESS: "",  # a Ray cluster that the user's shell knows is not the job's
        }
        return self._allocation.environment(node, directory) | variables

    def start(self, roster: Roster, missing: Collection[str] = ()) -> None:
        """Start the agents of all nodes that are not missing, and begin to start what else the active ones need."""
        self._awake_clock.start()
        for record in self._allocation.nodes:
            if record.hostname not in missing:
                self._start_agent(record)
        self.begin_change(roster)

    def restart(self, roster: Roster) -> None:
        """Begin a new cluster after the primary's agent, or whatever else the cluster depends on, was lost."""
        if self._primary.hostname not in self.nodes:
            self._start_agent(self._primary)
        self.begin_change(roster)

    def warm_up(self, hosts: Iterable[str]) -> None:
        """Prepare nodes that may soon be swapped in."""

    def begin_change(self, roster: Roster) -> None:
        """Begin to start what the hosts of a launch need, without waiting."""

    def finish_change(self, roster: Roster, launch: int) -> int:
        """Wait until the cluster is what a launch needs, and no process of a launch before ``launch`` is left."""
        self._raise_if_lost(self.nodes[host] for host in roster.up)
        n_ended = self._end_leftovers(launch)
        self._raise_if_lost(self.nodes[host] for host in roster.up)
        return n_ended

    def lost(self) -> list[str]:
        """Return the hosts whose agent is gone or silent, or where something that must keep running has ended."""
        return [host for host, node in self.nodes.items() if self._is_lost(node)]

    def why_lost(self, host: str) -> WhyLost:
        """Return why a node counts as lost."""
        node = self.nodes[host]
        if node.ray.state == "ended" and not Cluster._is_lost(self, node):
            return WhyLost("Ray ended")
        if node.agent.gone:
            return WhyLost("ended")
        if node.told_to_end:
            return WhyLost("told to end")
        if node.tasks.stuck:
            return WhyLost("stuck", stuck=node.tasks.stuck)
        return WhyLost("silent", self._silent_s(node))

    def lost_after_ping(self, hosts: Iterable[str]) -> list[str]:
        """Ping these hosts, wait until all have answered or any node is lost, and return the lost ones."""
        # A program may notice that a node is lost, and fail, before we do.
        nodes = [self.nodes[host] for host in hosts if host in self.nodes]
        for node in nodes:
            node.checks.ping()
        self.wait_for(lambda: bool(self.lost()) or all(node.checks.answered for node in nodes), ANSWER_DEADLINE_S)
        return self.lost()

    def killed_workers(self, since_s: float) -> list[ProcessEnd]:
        """Return the workers that were killed, but not by us, since a moment in Unix time."""
        del since_s
        return []  # there are no workers without Ray

    def clocks(self) -> dict[str, ClockOffset]:
        """Return how far each node's clock is from this machine's; those of virtual nodes are this machine's."""
        return {
            host: clock
            for host, node in self.nodes.items()
            if (clock := node.checks.clock) is not None and not is_loopback(node.record.address)
        }

    def wait_for(self, done: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until something holds that a node reports; return False at the deadline."""
        return wait_for(self._changed, done, deadline_s)

    def begin_checks(self, hosts: Iterable[str], *, probe: bool = False) -> None:
        """Begin to check these nodes, and to probe their devices, side by side, without waiting."""
        for node in (self.nodes[host] for host in hosts if host in self.nodes):
            if len(self.nodes) <= MAX_VIRTUAL_CHECKS or not is_loopback(node.record.address):
                node.checks.check(node.record.devices, probe=probe)

    def finish_checks(self, hosts: Iterable[str]) -> dict[str, tuple[NodeCheck, NodeCheck]]:
        """Wait for the checks, and return each node's state when the job began and now; others are left out."""
        nodes = [self.nodes[host] for host in hosts if host in self.nodes]
        self.wait_for(lambda: all(node.checks.done or self._is_lost(node) for node in nodes), CHECK_WAIT_S)
        return {
            node.record.hostname: (first, last)
            for node in nodes
            if (first := node.checks.first) is not None and (last := node.checks.last) is not None and first != last
        }

    def stacks(self, hosts: Iterable[str], launch: int) -> list[RankStack]:
        """Return where the ranks of a launch stand on these nodes; those of nodes that do not answer are missing."""
        nodes = [self.nodes[host] for host in hosts if host in self.nodes]
        for node in nodes:
            node.checks.dump_stacks(launch)
        self.wait_for(
            lambda: all(node.checks.stacks is not None or self._is_lost(node) for node in nodes), STACKS_WAIT_S
        )
        return [stack for node in nodes for stack in node.checks.stacks or ()]

    def join_next(self) -> NodeRecord | None:
        """Add the next of the nodes that have joined since, and return it; it has no agent yet."""
        return None

    def leaving(self) -> dict[str, NodeWord]:
        """Return the hosts on which nothing new should run, since their manager takes them away, and why."""
        return {}

    def notices(self) -> list[Notice]:
        """Return what is new to tell the user about the nodes."""
        return [Notice(host, about) for host, node in self.nodes.items() for about in node.take_notices()]

    def remove(self, host: str) -> None:
        """Remove a lost node, and end what is left on it if it can be reached."""
        node = self.nodes.pop(host)
        if node.checks.first is not None:
            self._first_checks[host] = node.checks.first
        node.agent.kill()
        try:
            self._allocation.clear(node.record)
        except ProcessesStillRunningError as error:  # held in the kernel, which is why the node is lost
            _log.warning("on %s: %s", host, error)

    def connect(self, record: NodeRecord, agent: AgentProcess) -> Node:
        """Return a node by way of an agent that has just been started there; it is not one of ``nodes`` yet."""
        node = Node(record, agent, self._changed, self._awake_clock.now_s)
        node.checks.first = self._first_checks.get(record.hostname)
        directory, environment = str(self._node_directory(record)), self.environment(record)
        node.set_up(SetUp(directory, self._files(record), environment, self._timing.n_nodes))
        node.checks.ping()
        return node

    def may_return(self, record: NodeRecord) -> bool:
        """Return whether nothing in the cluster remains of a node that was lost."""
        return record.hostname not in self.nodes

    def take_back(self, node: Node) -> None:
        """Add a node that was lost, with its new agent."""
        self.nodes[node.record.hostname] = node

    def collect_logs(self) -> dict[str, dict[str, str]]:
        """Return the end of each log, by host: as the agents send it, or else from a folder on this machine."""
        nodes = [node for node in self.nodes.values() if not self._is_lost(node)]
        for node in nodes:
            node.checks.send_logs()
        self.wait_for(lambda: all(node.checks.logs_sent or self._is_lost(node) for node in nodes), LOGS_DEADLINE_S)
        sent = {node.record.hostname: dict(node.checks.logs) for node in nodes}
        here = {node.hostname: ends_of_logs(self._node_directory(node)) for node in self._allocation.nodes}
        return {host: logs for host in here if (logs := sent.get(host) or here[host])}

    def stop(self) -> None:
        """End everything on every node, the lost ones included."""
        for host in self.lost():
            self.remove(host)
        self._awake_clock.stop()
        for node in self.nodes.values():
            node.agent.close()
        until_s = time.monotonic() + STOP_DEADLINE_S
        for node in self.nodes.values():
            node.agent.wait(max(0.1, until_s - time.monotonic()))
        self.nodes.clear()
        self._allocation.close()

    def _ports_of(self, node: NodeRecord) -> dict[str, str]:
        """Return the variable that says at which ports a node listens: virtual ones share those of this machine."""
        if (ports := port_range()) is None:
            return {}
        if is_loopback(node.address):
            ports = ports.share(self._numbers[node.hostname] - 1, len(self._numbers))
        return {PORT_RANGE: str(ports)}

    def _files(self, node: NodeRecord) -> dict[str, str]:
        return {**self._setup.files, **self._setup.of_node(node)}

    def _start_agent(self, record: NodeRecord) -> None:
        self.nodes[record.hostname] = self.connect(record, self._allocation.start_agent(record))

    def _end_leftovers(self, launch: int) -> int:
        """End what is left of launches before ``launch`` on every node; return how many processes that were."""
        nodes = list(self.nodes.values())
        all_started = all(node.agent.has_started for node in nodes)
        deadline_s = ANSWER_DEADLINE_S if all_started else START_DEADLINE_S
        for node in nodes:
            node.tasks.end_leftovers(launch)
        if not self.wait_for(
            lambda: all(n.tasks.leftovers_ended is not None or self._is_lost(n) for n in nodes), deadline_s
        ):
            for node in nodes:
                if node.tasks.leftovers_ended is None and node.record == self._primary:
                    raise LeftoversError("processes of an old launch could not be ended", [node.record.hostname])
                if node.tasks.leftovers_ended is None:
                    node.tasks.stuck = StuckProcesses(deadline_s)
        if (primary := self.nodes.get(self._primary.hostname)) is not None and primary.tasks.stuck:
            primary.notices.append(primary.tasks.stuck)
        return sum(node.tasks.leftovers_ended or 0 for node in nodes)

    def _is_lost(self, node: Node) -> bool:
        if (node.tasks.stuck or node.told_to_end) and node.record != self._primary:
            return True
        return node.agent.gone or self._is_silent(node)

    def _is_silent(self, node: Node) -> bool:
        """Return whether nothing has come from an agent for too long; that of the only node is only slow."""
        if len(self._numbers) == 1:
            return False  # it is a child of ours, whose end we see
        silent_s = self._silent_s(node)
        if not node.agent.has_started:
            return silent_s > self._timing.first_heartbeat_s
        if silent_s <= self.heartbeat_timeout_s:
            return False
        return silent_s > self._timing.longest_s or not self._is_crowded()

    def _is_crowded(self) -> bool:
        """Return whether very many agents dial again, or did a moment ago: the last of them still wait."""
        if (now_s := self._awake_clock.now_s()) != self._counted_s:  # once a tick, not for each of them
            self._counted_s = now_s
            if sum(self._silent_s(node) > self._timing.replace_s for node in self.nodes.values()) > N_SILENT:
                self._crowded_s = now_s
        return now_s - self._crowded_s <= self.heartbeat_timeout_s

    def _silent_s(self, node: Node) -> float:
        """Return for how long nothing has come from an agent, counted only while we were awake."""
        return self._awake_clock.now_s() - node.agent.last_heard_s

    def _raise_if_lost(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if self._is_lost(node):
                raise NodeDownError(self._last_words(node), node.record.hostname)

    def _last_words(self, node: Node) -> str:
        return wording.stuck(node.tasks.stuck) if node.tasks.stuck else "its agent does not answer"

    def _node_directory(self, node: NodeRecord) -> Path:
        # Not named after the host, whose name may be long: sockets are created below.
        return self._directory / str(self._numbers[node.hostname])
