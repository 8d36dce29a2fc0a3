"""Nodes with real shard servers on a real state server, without a controller."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.checkpoints.node_store import NodeStore
from laggard.kvstore.checkpoints.settings import NodeShards, Registry
from laggard.kvstore.client.environment import ENDPOINT_FILE
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.controller.shard_servers import COMMAND, CheckpointOptions, ShardServers
from tests.waiting import DEADLINE_S, wait_until

__all__ = ["ShardNodes"]


class ShardNodes:
    """Virtual nodes n1, n2, ... of one job, launch after launch.

    Parameters
    ----------
    server
        The state server.
    folder
        Where the nodes' private folders go.
    n_nodes
        How many nodes.
    options
        The user's.
    run
        Id of the run of the job.
    """

    def __init__(
        self,
        server: StateServer,
        folder: Path,
        n_nodes: int,
        options: CheckpointOptions | None = None,
        run: str = "first",
    ) -> None:
        self.client = server.endpoint.connect()
        self.endpoint = server.endpoint
        self.run = run
        self.launch = -1
        nodes = tuple(NodeRecord(f"n{i}", f"127.0.0.{i}", ()) for i in range(1, n_nodes + 1))
        self.nodes = {node.hostname: node for node in nodes}
        self.folders = {host: folder / run / host for host in self.nodes}
        self.registry = Registry(self.client, self.endpoint, run)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        servers = ShardServers(options or CheckpointOptions(), nodes, run, "folder")
        for node in nodes:
            self.folders[node.hostname].mkdir(parents=True, mode=0o700)
            server.endpoint.save(self.folders[node.hostname] / "endpoint.json")
            for name, text in servers.files(node).items():
                (self.folders[node.hostname] / name).write_text(text)

    def begin(self, *hosts: str) -> None:
        """Begin a launch on these nodes; all by default."""
        self.launch += 1
        begin_launch(self.client, self.endpoint, self.launch)
        record = LaunchRecord(self.launch, tuple(self.nodes[host] for host in hosts or self.nodes), ())
        Control(self.client, self.endpoint, self.launch).write_launch(record)

    def start(self, *hosts: str) -> None:
        """Start the shard servers of these nodes; all by default."""
        for host in hosts or self.nodes:
            folder = self.folders[host]
            before = self.registry.read().get(host)
            with (folder / "shards.log").open("ab") as log:
                self.processes[host] = subprocess.Popen(
                    [*COMMAND, str(folder)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, ENDPOINT_FILE: str(folder / "endpoint.json")},
                )
            wait_until(lambda h=host, b=before: self.registry.read().get(h) not in (None, b))  # type: ignore[misc]

    def lose(self, host: str) -> None:
        """Kill a node's server, and have the job know, as its controller does."""
        process = self.processes.pop(host)
        with process:  # which closes its standard input
            process.kill()
            process.wait(DEADLINE_S)
        self.registry.remove(host)

    def send_signal(self, host: str, signum: signal.Signals) -> None:
        """Send a signal to a node's server."""
        self.processes[host].send_signal(signum)

    def checkpointer(self, host: str, rank: int = 0, ranks: int = 1, *, keep: int = 2, copies: int = 2) -> Checkpointer:
        """Return the checkpointer of a rank that runs on a node."""
        checkpoints = Checkpointer(
            State(self.client, self.endpoint, self.launch), rank=rank, ranks=ranks, keep=keep, copies=copies
        )
        settings = NodeShards.of_json((self.folders[host] / "shards.json").read_text())
        control = Control(self.client, self.endpoint, self.launch)
        checkpoints._store = NodeStore(settings, self.folders[host], control, self.registry)
        return checkpoints

    def log(self, host: str) -> str:
        """Return what a node's server has logged."""
        return (self.folders[host] / "shards.log").read_text()

    def end(self) -> None:
        """End all servers: the end of their standard input is that of their agent."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            with process:  # which closes its standard input
                pass
        self.processes.clear()
