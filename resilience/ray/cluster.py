"""The Ray cluster that laggard starts on an allocation; its set of nodes changes without a teardown.

Every node of the allocation has its agent from the start. Only active nodes have Ray processes, so nothing can be
placed on the reserve. They are started when a node is swapped in, and the processes of good nodes stay up.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from laggard.kvstore.client.connection import is_loopback
from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation import Allocation
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import ClusterError
from laggard.resilience.folders import RUNTIME_ROOT_VARIABLE
from laggard.resilience.nodes import wording
from laggard.resilience.nodes.cluster import RAY_ADDRESS, START_DEADLINE_S, STOP_DEADLINE_S, Cluster, NodeFiles
from laggard.resilience.nodes.node import Node
from laggard.resilience.ray.private_api import HeadClient
from laggard.resilience.text import abbreviated
from laggard.system.certificates import Authority
from laggard.system.ports import host_and_port, listens

POLL_S = 0.05
# Virtual nodes share this machine's processors: if all started at once, each would take longer than Ray allows.
MAX_JOINING = (os.cpu_count() or 1) + 2
# Ray gives a node half a minute to start, however busy the machine is.
JOIN_ATTEMPTS, HEAD_ATTEMPTS = 3, 2
_RAY_SETTINGS = {
    # A node whose processes are gone refuses three checks and leaves Ray's records within two seconds; a node that is
    # only starved has five seconds to answer each check.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    # A worker that Ray ends for being idle can abort as it exits, with a stack trace on the user's terminal.
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # With `ray[default]` Ray would serve its own metrics to everybody, at every address.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    "RAY_AUTH_MODE": "token",
    # Ray listens at every address of a node, and a call without a token can crash its head before the token is checked.
    # So a call needs a certificate of this job first.
    "RAY_USE_TLS": "1",
}
# The kernel's limit, and the longest path of a socket that Ray makes below a node's directory.
MAX_SOCKET_PATH = 107
_SOCKET = "/1/ray/session_2026-01-31_12-00-00_000000_12345/sockets/plasma_store"
# Why Ray killed a worker of a node without memory, in the words of the table of signatures.
MEMORY_LINE = "Ray killed it: the node is running low on memory"
_TOKEN, _CERTIFICATE, _KEY, _AUTHORITY = "ray-token", "ray.crt", "ray.key", "ray-authority.crt"


class RayCluster(Cluster):
    """Ray processes on the active nodes of an allocation."""

    def __init__(
        self, allocation: Allocation, directory: Path, setup: NodeFiles, changed: threading.Condition, port: int
    ) -> None:
        if (length := len(f"{directory}{_SOCKET}")) > MAX_SOCKET_PATH:
            raise ClusterError(
                f"{directory.parent} is too long a path for Ray's sockets below it, by {length - MAX_SOCKET_PATH} "
                f"characters: set a shorter one with {RUNTIME_ROOT_VARIABLE}"
            )
        super().__init__(allocation, directory, setup, changed)
        self._token = secrets.token_hex(32)
        self._authority = Authority()
        self.address = host_and_port(self._primary.address, port)
        self._port = port  # port of Ray's head on the primary
        self._head: HeadClient | None = None
        self._waiting: list[str] = []
        self._offered: frozenset[str] = frozenset()  # the hosts on which Ray may place something
        self._joined: set[str] = set()
        self._attempts: Counter[str] = Counter()

    def environment(self, node: NodeRecord) -> dict[str, str]:
        """Return the variables with which a process on a node finds its cluster, its job and its devices."""
        directory = self._node_directory(node)
        return {
            **super().environment(node),
            **_RAY_SETTINGS,
            RAY_ADDRESS: self.address,
            "RAY_AUTH_TOKEN_PATH": str(directory / _TOKEN),
            "RAY_TLS_SERVER_CERT": str(directory / _CERTIFICATE),
            "RAY_TLS_SERVER_KEY": str(directory / _KEY),
            "RAY_TLS_CA_CERT": str(directory / _AUTHORITY),
        }

    def restart(self, roster: Roster) -> None:
        """End Ray on every node and begin to start it again with a new head."""
        # The old head is lost, or it offers devices that are not to be used any more, or hides some that are.
        up = [node for node in self.nodes.values() if node.ray.state == "up"]
        for node in up:
            node.ray.stop()
        if not self.wait_for(
            lambda: all(node.ray.state != "up" or self._is_lost(node) for node in up), STOP_DEADLINE_S
        ):
            slow = abbreviated([node.record.hostname for node in up if node.ray.state == "up"])
            raise ClusterError(f"the old Ray processes could not be ended on {slow}")
        self._head = None
        self._joined = set()
        super().restart(roster)

    def warm_up(self, hosts: Iterable[str]) -> None:
        """Prepare nodes that may soon be swapped in."""
        for host in hosts:
            self.nodes[host].ray.warm_up()

    def begin_change(self, roster: Roster) -> None:
        """Begin to start Ray on the hosts of a launch where it is not up; :meth:`finish_change` does the rest."""
        self._offered = frozenset(roster.active)
        self._waiting = [host for host in roster.up if self.nodes[host].ray.state == "down"]
        self._attempts.clear()
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start Ray on the hosts that wait for it; on this machine not too many at once."""
        joining = sum(
            node.ray.state == "up" and node.record.address not in self._joined for node in self.nodes.values()
        )
        while self._waiting:
            node = self.nodes.get(self._waiting[0])
            if node is not None:
                if joining >= MAX_JOINING and is_loopback(node.record.address):
                    return
                node.ray.start(self._ray_arguments(node.record))
                self._attempts[node.record.hostname] += 1
                joining += 1
            del self._waiting[0]

    def _try_again(self) -> None:
        """Queue the hosts again whose Ray ended before it had joined."""
        for host in [
            host for host, node in self.nodes.items() if node.ray.state == "ended" and self._may_try_again(node)
        ]:
            self.nodes[host].ray.state = "down"
            self._waiting.append(host)
            if host == self._primary.hostname:  # that of the others has ended for want of a head
                self._head = None
                for other in self._attempts.keys() - {host}:
                    self._attempts[other] = min(1, self._attempts[other])

    def _may_try_again(self, node: Node) -> bool:
        if node.record.address in self._joined:
            return False  # it has left the cluster, so it is lost
        most = HEAD_ATTEMPTS if node.record == self._primary else JOIN_ATTEMPTS
        return 0 < self._attempts[node.record.hostname] < most

    def finish_change(self, roster: Roster, launch: int) -> int:
        """Leave exactly a launch's hosts in the cluster, and no process of a launch before ``launch`` on any host."""
        wanted = [self.nodes[host] for host in roster.up]
        self._raise_if_lost(wanted)
        leaving = [node for node in self.nodes.values() if node.ray.state == "up" and node not in wanted]
        for node in leaving:
            node.ray.stop()
        n_ended = self._end_leftovers(launch)
        self.wait_for(lambda: all(node.ray.state != "up" or self._is_lost(node) for node in leaving), STOP_DEADLINE_S)
        self._wait_until_members(wanted)
        return n_ended

    def may_return(self, record: NodeRecord) -> bool:
        """Return whether Ray has noticed that the node's old processes have ended: a new one has the same address."""
        return super().may_return(record) and record.address not in self._members()

    def take_back(self, node: Node) -> None:
        """Add a node that was lost, with its new agent."""
        self._joined.discard(node.record.address)
        super().take_back(node)

    def killed_workers(self, since_s: float) -> list[ProcessEnd]:
        """Return the workers that were killed, neither by Ray nor by laggard, since the given Unix time."""
        if self._head is None or not listens(self._primary.address, self._port):
            return []  # without a head there is nothing to ask, and asking would block
        hosts = {node.record.address: host for host, node in self.nodes.items()}
        return [
            ProcessEnd(
                hosts.get(worker.address, worker.address),
                worker.pid,
                -signal.SIGKILL if worker.out_of_memory else worker.exit_code,
                worker.ended_s,
                worker.ran_s,
                (MEMORY_LINE,) if worker.out_of_memory else (),
                is_worker=True,
            )
            for worker in self._head.killed_workers(since_s)
        ]

    def _files(self, node: NodeRecord) -> dict[str, str]:
        issued = self._authority.issue(node.address)
        keys = {_CERTIFICATE: issued.certificate, _KEY: issued.key, _AUTHORITY: issued.authority, _TOKEN: self._token}
        return {**super()._files(node), **keys}

    def _is_lost(self, node: Node) -> bool:
        return super()._is_lost(node) or (node.ray.state == "ended" and not self._may_try_again(node))

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
            f"--temp-dir={self._node_directory(node) / 'ray'}",  # Ray makes this folder readable for everybody
            "--disable-usage-stats",
            *self._allocation.ray_options(node),
            # Of two options with one name the last counts.
            *([] if node.hostname in self._offered else ["--num-cpus=0", "--num-gpus=0"]),
        ]

    def _wait_until_members(self, nodes: Sequence[Node]) -> None:
        addresses = {node.record.address for node in nodes}
        until_s = time.monotonic() + START_DEADLINE_S
        while (members := self._members()) != addresses:
            self._try_again()
            self._raise_if_lost(nodes)
            if members - self._joined:  # each node that joins extends the deadline
                until_s = time.monotonic() + START_DEADLINE_S
            self._joined = members
            self._start_waiting()
            if time.monotonic() > until_s:
                if missing := [node for node in nodes if node.record.address not in members]:
                    self._give_up(missing)
                    until_s = time.monotonic() + START_DEADLINE_S
                    continue
                others = abbreviated(sorted(members - addresses))
                raise ClusterError(f"{others} did not leave the cluster within {START_DEADLINE_S:.0f} s")
            self.wait_for(lambda: False, POLL_S)  # Ray's records have no event to wait for
        self._joined = members

    def _give_up(self, missing: Sequence[Node]) -> None:
        """End what has not joined in time: the head's processes once, if it is missing, else those of all."""
        head = [node for node in missing if node.record == self._primary]
        for node in head or missing:
            node.ray.give_up()
            if not head:
                self._attempts[node.record.hostname] = JOIN_ATTEMPTS
        self.wait_for(lambda: all(node.ray.state == "ended" for node in head or missing), STOP_DEADLINE_S)
        for node in head or missing:
            node.ray.state = "ended"

    def _members(self) -> set[str]:
        if not listens(self._primary.address, self._port):
            return set()
        self._head = self._head or HeadClient(self.address, self.environment(self._primary))
        return self._head.alive_addresses()

    def _last_words(self, node: Node) -> str:
        return wording.ray_ended(node.ray.end)
