"""The Ray cluster on an allocation: up in one step, its set of nodes changed without tearing it down.

Every node of the allocation has its agent from the start. Only active nodes have Ray processes, so nothing can be
placed on the reserve; they are started when a node is swapped in, and the good nodes' processes stay up.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstore.certificates import Authority
from kvstore.control import NodeRecord
from kvstore.environment import ENDPOINT_FILE, NODE
from resilience.allocation import Allocation
from resilience.attention import Attention
from resilience.gcs import HeadSilentError, NodeDirectory
from resilience.node import Node
from resilience.ports import listens

__all__ = ["ClusterError", "NodeDownError", "NodeFiles", "RayCluster"]

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 8.0
# Seven beats of an agent. A frozen or cut off node is noticed within half a second more: well within five seconds.
SILENT_NODE_S = 3.5
POLL_S = 0.05
_RAY_SETTINGS = {
    # A node whose processes are gone refuses three checks and leaves Ray's records within two seconds; one that is only
    # starved has five seconds to answer each.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    # A worker that Ray ends for being idle can abort on its way out, with a stack on the user's terminal.
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray serves its own metrics to everybody at every address, where it can (`ray[default]`).
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    "RAY_AUTH_MODE": "token",
    # Ray listens at every address of a node, and a call without a token can end its head before the token is asked for:
    # so nobody gets as far as to make a call without a certificate of this job.
    "RAY_USE_TLS": "1",
}
_TOKEN, _CERTIFICATE, _KEY, _AUTHORITY = "ray-token", "ray.crt", "ray.key", "ray-authority.crt"


class ClusterError(RuntimeError):
    """The cluster did not come up."""


class NodeDownError(ClusterError):
    """A node that should be in the cluster is lost; :meth:`RayCluster.lost` names it too."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """What every node gets before it starts anything: private files by name, and environment variables."""

    files: dict[str, str]
    environment: dict[str, str]


class RayCluster:
    """Ray processes on the active nodes of an allocation.

    Parameters
    ----------
    allocation
        The nodes, and how to start a process on each.
    directory
        Private folder for the nodes' files; its path must be short, since Ray makes sockets below it.
    setup
        Files and variables that every node gets.
    news
        Announced at every change that the agents tell of.
    port
        Port of Ray's head on the primary.
    """

    def __init__(
        self, allocation: Allocation, directory: Path, setup: NodeFiles, news: threading.Condition, port: int
    ) -> None:
        self._allocation = allocation
        self._directory = directory
        self._news = news
        self._primary = allocation.nodes[0]
        self._token = secrets.token_hex(32)
        self._authority = Authority()
        self._setup = setup
        self.address = f"{self._primary.address}:{port}"
        self._port = port
        self._directory_of_nodes: NodeDirectory | None = None
        self._attention = Attention()
        self.nodes: dict[str, Node] = {}

    def environment(self, node: NodeRecord) -> dict[str, str]:
        """Return the variables with which a process on a node finds its cluster, its job and its devices."""
        directory = self._node_directory(node)
        variables = {
            **self._setup.environment,
            **_RAY_SETTINGS,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_TOKEN_PATH": str(directory / _TOKEN),
            "RAY_TLS_SERVER_CERT": str(directory / _CERTIFICATE),
            "RAY_TLS_SERVER_KEY": str(directory / _KEY),
            "RAY_TLS_CA_CERT": str(directory / _AUTHORITY),
            NODE: node.hostname,
            ENDPOINT_FILE: str(directory / "endpoint.json"),
        }
        return variables | self._allocation.device_variables(node, directory)

    def start(self, active: Sequence[str]) -> None:
        """Start the agents of all nodes, and begin to start Ray on the active ones."""
        self._attention.start()
        for record in self._allocation.nodes:
            self._start_agent(record)
        self.begin_change(active)

    def start_anew(self, active: Sequence[str]) -> None:
        """End Ray on every node and begin to start it again with a new head; the old head is lost or abandoned.

        Raises
        ------
        ClusterError
            If a node's old Ray processes do not end in time.
        """
        if self._primary.hostname not in self.nodes:
            self._start_agent(self._primary)
        up = [node for node in self.nodes.values() if node.ray == "up"]
        for node in up:
            node.stop_ray()
        if not self._wait_for(lambda: all(node.ray != "up" or self._is_lost(node) for node in up), STOP_DEADLINE_S):
            slow = ", ".join(node.record.hostname for node in up if node.ray == "up")
            raise ClusterError(f"the old Ray processes could not be ended on {slow}")
        self._directory_of_nodes = None
        self.begin_change(active)

    def _start_agent(self, record: NodeRecord) -> None:
        node = Node(record, self._allocation.start_agent(record), self._news, self._attention.now_s)
        issued = self._authority.issue(record.address)
        keys = {_CERTIFICATE: issued.certificate, _KEY: issued.key, _AUTHORITY: issued.authority, _TOKEN: self._token}
        files = {**self._setup.files, **keys}
        node.set_up(str(self._node_directory(record)), files, self.environment(record))
        self.nodes[record.hostname] = node

    def warm_up(self, hosts: Iterable[str]) -> None:
        """Prepare nodes that may soon be swapped in."""
        for host in hosts:
            self.nodes[host].warm_up()

    def begin_change(self, active: Sequence[str]) -> None:
        """Start Ray on those of the given hosts that have none, without waiting."""
        for host in active:
            if self.nodes[host].ray == "down":
                self.nodes[host].start_ray(self._ray_arguments(self.nodes[host].record))

    def finish_change(self, active: Sequence[str], launch: int) -> int:
        """Leave exactly the given hosts in the cluster, with no process of a launch before ``launch`` on them.

        Returns
        -------
        int
            How many leftover processes were ended on the nodes that stay.

        Raises
        ------
        NodeDownError
            If a node does not come up in time, or is lost meanwhile; the message shows the end of its log.
        ClusterError
            If a process cannot be ended in time.
        """
        wanted = [self.nodes[host] for host in active]
        self._raise_if_lost(wanted)
        up = [node for node in self.nodes.values() if node.ray == "up"]
        leaving = [node for node in up if node.record.hostname not in active]
        staying = [node for node in up if node not in leaving]
        for node in leaving:
            node.stop_ray()
        for node in staying:
            node.sweep(launch)
        if not self._wait_for(lambda: all(n.swept is not None or self._is_lost(n) for n in staying), STOP_DEADLINE_S):
            slow = ", ".join(node.record.hostname for node in staying if node.swept is None)
            raise ClusterError(f"processes of an old launch could not be ended on {slow}")
        self._wait_for(lambda: all(node.ray != "up" or self._is_lost(node) for node in leaving), STOP_DEADLINE_S)
        self._wait_until_members(wanted)
        return sum(node.swept or 0 for node in staying)

    def lost(self) -> list[str]:
        """Return the hosts whose agent is gone or silent, or whose Ray processes ended by themselves."""
        return [host for host, node in self.nodes.items() if self._is_lost(node)]

    def _is_lost(self, node: Node) -> bool:
        limit_s = SILENT_NODE_S if node.spoke else START_DEADLINE_S
        return node.gone or node.ray == "ended" or self._attention.now_s() - node.heard_s > limit_s

    def _raise_if_lost(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if self._is_lost(node):
                raise NodeDownError(f"{node.record.hostname} is not up: {self._last_words(node.record)}")

    def workers_killed(self, since_s: float) -> bool:
        """Whether a worker was ended by force, by nobody of Ray's or ours, since a moment in Unix time."""
        if self._directory_of_nodes is None or not listens(self._primary.address, self._port):
            return False  # without a head there is nobody to ask, and asking would take its time
        return self._directory_of_nodes.workers_killed(since_s)

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

    def _ray_arguments(self, node: NodeRecord) -> list[str]:
        role = ["--head", f"--port={self._port}", "--include-dashboard=false", "--no-monitor"]
        if node != self._primary:
            role = [f"--address={self.address}"]
        return [
            "start",
            "--block",
            *role,
            f"--node-ip-address={node.address}",
            f"--node-name={node.hostname}",
            f"--temp-dir={self._node_directory(node) / 'ray'}",  # Ray opens this folder to everybody
            "--disable-usage-stats",
            *self._allocation.ray_options(node),
        ]

    def _node_directory(self, node: NodeRecord) -> Path:
        return self._directory / node.hostname

    def _wait_for(self, done: Callable[[], bool], deadline_s: float) -> bool:
        with self._news:
            return self._news.wait_for(done, deadline_s)

    def _wait_until_members(self, nodes: Sequence[Node]) -> None:
        addresses = {node.record.address for node in nodes}
        until_s = time.monotonic() + START_DEADLINE_S
        while (members := self._members()) != addresses:
            self._raise_if_lost(nodes)
            if time.monotonic() > until_s:
                missing = [node for node in nodes if node.record.address not in members]
                for node in missing:
                    node.give_up()
                self._raise_if_lost(missing)
                strangers = ", ".join(sorted(members - addresses))
                raise ClusterError(f"{strangers} did not leave the cluster within {START_DEADLINE_S:.0f} s")
            self._wait_for(lambda: False, POLL_S)  # Ray's directory of nodes has no event to wait for

    def _members(self) -> set[str]:
        if self._directory_of_nodes is None:
            if not listens(self._primary.address, self._port):
                return set()
            try:
                self._directory_of_nodes = NodeDirectory(self.address, self.environment(self._primary))
            except HeadSilentError:
                return set()
        return self._directory_of_nodes.alive_addresses()

    def _last_words(self, node: NodeRecord) -> str:
        log = self._node_directory(node) / "ray.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return " / ".join(lines[-3:]) or "no log"
