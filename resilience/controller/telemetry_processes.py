"""The job's telemetry processes: one on each node in use, and the server on the primary.

They belong to the job, not to a launch, and keep running while launches come and go.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import nodes_in_use
from laggard.resilience.errors import UsageError
from laggard.resilience.nodes.cluster import Cluster
from laggard.system.ports import free_port, keep, port_range
from laggard.telemetry.client import request_dump
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.settings import SETTINGS_FILE, TelemetrySettings, load_settings

LOOPBACK = "127.0.0.1"
# Bounds how long the end of a job waits for its dump; a node writes half a million samples per second.
DUMP_DEADLINE_S = 20.0
NODE_COMMAND = (sys.executable, "-P", "-m", "laggard.collectors.metrics.process")
SERVER_COMMAND = (sys.executable, "-P", "-m", "laggard.telemetry.server")


@dataclass(frozen=True, slots=True)
class JobTelemetry:
    """The telemetry of a job: how much is observed, and where it is served."""

    level: int  # telemetry level, 0 (nothing) to 4
    port: int  # port of the server on the primary's loopback address
    settings: TelemetrySettings  # settings from the user's file

    @classmethod
    def configured(cls, level: int, config: Path | None) -> JobTelemetry:
        """Return the telemetry for a level and the user's settings file."""
        settings = TelemetrySettings() if config is None else load_settings(config)
        port, usual = settings.aggregator_port, TelemetrySettings().aggregator_port
        if level and ((port == usual and port_range()) or not keep(port, LOOPBACK)):
            if port != usual:
                fix = f"name another as aggregator_port in {config}"
                raise UsageError(f"port {port}", "for the telemetry server is taken", fix)
            port = free_port(LOOPBACK)
        return cls(level, port, settings)

    @property
    def files(self) -> dict[str, str]:
        """Files that every node needs, by name."""
        # Resolved here: nodes run in private folders, which are removed with the job.
        dump_dir = str(Path(self.settings.dump_dir).absolute())
        return {SETTINGS_FILE: replace(self.settings, dump_dir=dump_dir).to_yaml()} if self.level else {}

    @property
    def where(self) -> str:
        """Where the server is, and how to reach it from another machine."""
        is_moved = self.port != self.settings.aggregator_port and port_range() is None
        moved = f" ({self.settings.aggregator_port} is taken)" if is_moved else ""
        return f"http://{LOOPBACK}:{self.port}{moved}; ssh command: {self.settings.tunnel_command(self.port)}"

    def start(self, cluster: Cluster, hosts: tuple[str, ...]) -> None:
        """Start what is not running yet on these hosts; the first one is the primary."""
        if self.level == 0:
            return
        cluster.nodes[hosts[0]].tasks.start_sidecar("telemetry-server", [*SERVER_COMMAND, "--port", str(self.port)])
        for host in hosts:
            cluster.nodes[host].tasks.start_sidecar("telemetry", NODE_COMMAND)

    def dump(self, endpoint: Endpoint) -> list[str]:
        """Have the nodes dump their samples to files before they end, if the user has named a folder for it."""
        if self.level == 0 or not self.settings.dump_dir:
            return []
        try:
            with endpoint.connect(timeout_s=DUMP_DEADLINE_S) as client:
                asker = NodeAsker(client, endpoint)
                expected = nodes_in_use(client, endpoint)
                dumps = request_dump(asker, self.settings.dump_node, expected, deadline_s=DUMP_DEADLINE_S)
        except redis.RedisError as error:
            return [f"none was written: {error}"]
        return [*dumps.written, *dumps.missing]
