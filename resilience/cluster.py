"""The nodes of an allocation at work: an agent on each, from the start to the end of the job.

What runs on them for a launch is changed between two launches, without tearing down what is good.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvstore.control import NodeRecord
from kvstore.environment import ENDPOINT_FILE, NODE
from resilience.allocation import Allocation
from resilience.attention import Attention
from resilience.node import Node

__all__ = ["RAY_ADDRESS", "Cluster", "ClusterError", "NodeDownError", "NodeFiles"]

RAY_ADDRESS = "RAY_ADDRESS"
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 8.0
# An agent that is busy ending something answers after that.
ANSWER_DEADLINE_S = 20.0
TICK_S = 0.25
# Seven beats of an agent. A frozen or cut off node is noticed within half a second more: well within five seconds.
SILENT_NODE_S = 3.5


class ClusterError(RuntimeError):
    """The cluster did not come up."""


class NodeDownError(ClusterError):
    """A node that should be in the cluster is lost; :meth:`Cluster.lost` names it too."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """What every node gets before it starts anything: private files by name, and environment variables."""

    files: dict[str, str]
    environment: dict[str, str]


class Cluster:
    """Agents on the nodes of an allocation, and nothing else: enough for a program that brings its own way to talk.

    Parameters
    ----------
    allocation
        The nodes, and how to start a process on each.
    directory
        Private folder for the nodes' files; its path must be short, since sockets are made below it.
    setup
        Files and variables that every node gets.
    news
        Announced at every change that the agents tell of.

    Attributes
    ----------
    silent_node_s
        How long an agent may be silent.
    """

    silent_node_s: ClassVar[float] = SILENT_NODE_S

    def __init__(self, allocation: Allocation, directory: Path, setup: NodeFiles, news: threading.Condition) -> None:
        self._allocation = allocation
        self._directory = directory
        self._news = news
        self._primary = allocation.nodes[0]
        self._numbers = {node.hostname: number for number, node in enumerate(allocation.nodes, 1)}
        self._setup = setup
        self._attention = Attention()
        self.nodes: dict[str, Node] = {}

    def environment(self, node: NodeRecord) -> dict[str, str]:
        """Return the variables with which a process on a node finds its cluster, its job and its devices."""
        directory = self._node_directory(node)
        variables = {
            **self._setup.environment,
            NODE: node.hostname,
            ENDPOINT_FILE: str(directory / "endpoint.json"),
            RAY_ADDRESS: "",  # whatever cluster the user's shell knows is not the job's
        }
        return self._allocation.environment(node, directory) | variables

    def start(self, active: Sequence[str]) -> None:
        """Start the agents of all nodes, and begin to start on the active ones what else they need."""
        self._attention.start()
        for record in self._allocation.nodes:
            self._start_agent(record)
        self.begin_change(active)

    def start_anew(self, active: Sequence[str]) -> None:
        """Begin again, after the primary's agent or what else the cluster stands on was lost or abandoned.

        Raises
        ------
        ClusterError
            If what is left of the old cluster does not end in time.
        """
        if self._primary.hostname not in self.nodes:
            self._start_agent(self._primary)
        self.begin_change(active)

    def warm_up(self, hosts: Iterable[str]) -> None:
        """Prepare nodes that may soon be swapped in."""

    def begin_change(self, active: Sequence[str]) -> None:
        """Begin to start on the given hosts what they need, without waiting."""

    def finish_change(self, active: Sequence[str], launch: int) -> int:
        """Leave exactly the given hosts in the cluster, with no process of a launch before ``launch`` on any.

        Returns
        -------
        int
            How many leftover processes were ended.

        Raises
        ------
        NodeDownError
            If a node does not come up in time, or is lost meanwhile; the message shows the end of its log.
        ClusterError
            If a process cannot be ended in time.
        """
        self._raise_if_lost(self.nodes[host] for host in active)
        swept = self._sweep(launch)
        self._raise_if_lost(self.nodes[host] for host in active)
        return swept

    def lost(self) -> list[str]:
        """Return the hosts whose agent is gone or silent, or that lack what their agent should keep running."""
        return [host for host, node in self.nodes.items() if self._is_lost(node)]

    def lost_of(self, hosts: Iterable[str]) -> list[str]:
        """Ask these hosts, and wait until each has answered or one of all is lost; return who is lost.

        What a program misses of a node that is lost it may miss earlier than we do.
        """
        nodes = [self.nodes[host] for host in hosts if host in self.nodes]
        for node in nodes:
            node.ask()
        self._wait_for(lambda: bool(self.lost()) or all(node.answered for node in nodes), ANSWER_DEADLINE_S)
        return self.lost()

    def workers_killed(self, since_s: float) -> bool:
        """Whether a worker was ended by force, by nobody of ours, since a moment in Unix time."""
        del since_s
        return False  # who starts no workers hears of none

    def notices(self) -> list[str]:
        """Return what the user should hear of the nodes, once."""
        return [f"{node.record.hostname}: {notice}" for node in self.nodes.values() for notice in node.take_notices()]

    def abandon(self, host: str) -> None:
        """Give a lost node up: end what is left of it, as far as it can be reached."""
        node = self.nodes.pop(host)
        node.kill()
        self._allocation.clear(node.record)

    def stop(self) -> None:
        """End everything on every node."""
        self._attention.stop()
        for node in self.nodes.values():
            node.close()
        until_s = time.monotonic() + STOP_DEADLINE_S
        for node in self.nodes.values():
            node.wait(max(0.1, until_s - time.monotonic()))
        self.nodes.clear()
        self._allocation.close()

    def _files(self, node: NodeRecord) -> dict[str, str]:
        del node  # they all get the same
        return self._setup.files

    def _start_agent(self, record: NodeRecord) -> None:
        node = Node(record, self._allocation.start_agent(record), self._news, self._attention.now_s)
        node.set_up(str(self._node_directory(record)), self._files(record), self.environment(record))
        self.nodes[record.hostname] = node

    def _sweep(self, launch: int) -> int:
        """End what is left of launches before one, on every node; return how many processes that were."""
        nodes = list(self.nodes.values())
        deadline_s = STOP_DEADLINE_S if all(node.spoke for node in nodes) else START_DEADLINE_S  # some are starting
        for node in nodes:
            node.sweep(launch)
        if not self._wait_for(lambda: all(n.swept is not None or self._is_lost(n) for n in nodes), deadline_s):
            slow = ", ".join(node.record.hostname for node in nodes if node.swept is None)
            raise ClusterError(f"processes of an old launch could not be ended on {slow}")
        return sum(node.swept or 0 for node in nodes)

    def _is_lost(self, node: Node) -> bool:
        limit_s = self.silent_node_s if node.spoke else START_DEADLINE_S
        return node.gone or self._attention.now_s() - node.heard_s > limit_s

    def _raise_if_lost(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if self._is_lost(node):
                raise NodeDownError(f"{node.record.hostname} is not up: {self._last_words(node)}")

    def _last_words(self, node: Node) -> str:
        del node
        return "its agent does not answer"

    def _node_directory(self, node: NodeRecord) -> Path:
        # Not the host's name, which may be long: sockets are made below.
        return self._directory / str(self._numbers[node.hostname])

    def _wait_for(self, done: Callable[[], bool], deadline_s: float) -> bool:
        until_s = time.monotonic() + deadline_s
        with self._news:
            while not done():
                if (left_s := until_s - time.monotonic()) <= 0:
                    return False
                self._news.wait(min(left_s, TICK_S))  # that somebody is silent is no news to wait for
        return True
