"""The job's telemetry processes: one on each node in use, and the server on the primary.

They belong to the job, not to one launch, and go on while launches come and go.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from kvstore.endpoint import Endpoint
from resilience.cluster import Cluster
from resilience.options import UsageError
from resilience.ports import claim_port, free_port
from telemetry.bus import NodeAsker
from telemetry.client import request_dump
from telemetry.settings import SETTINGS_FILE, TelemetrySettings, load_settings

__all__ = ["Observation"]

LOOPBACK = "127.0.0.1"
# The end of a job must not hang on it; a node writes half a million samples a second.
DUMP_DEADLINE_S = 20.0
NODE_COMMAND = (sys.executable, "-m", "collectors.node_agent")
SERVER_COMMAND = (sys.executable, "-m", "telemetry.server")


@dataclass(frozen=True, slots=True)
class Observation:
    """What is observed of a job, and where it can be looked at.

    Attributes
    ----------
    level
        Telemetry level, 0 (nothing) to 4.
    port
        Port of the server on the primary, at the loopback address.
    settings
        As the user's file says.
    """

    level: int
    port: int
    settings: TelemetrySettings

    @classmethod
    def planned(cls, level: int, config: Path | None) -> Observation:
        """Plan for a level and the user's file.

        Raises
        ------
        SettingsError
            If the file cannot be read or is wrong.
        UsageError
            If the port that the file names is taken.
        """
        settings = TelemetrySettings() if config is None else load_settings(config)
        port = settings.aggregator_port
        if level and not claim_port(port, LOOPBACK):
            if port != TelemetrySettings().aggregator_port:
                raise UsageError(
                    f"port {port} for the telemetry server is taken: name another as aggregator_port in {config}"
                )
            port = free_port(LOOPBACK)
        return cls(level, port, settings)

    @property
    def files(self) -> dict[str, str]:
        """What every node needs, by name."""
        # Nodes work in folders of their own, which go with the job: a dump is to go where the user means.
        dump_dir = str(Path(self.settings.dump_dir).absolute())
        return {SETTINGS_FILE: replace(self.settings, dump_dir=dump_dir).to_yaml()} if self.level else {}

    @property
    def where(self) -> str:
        """Where to look, and how to get there from another machine."""
        moved = "" if self.port == self.settings.aggregator_port else f" ({self.settings.aggregator_port} is taken)"
        return f"http://{LOOPBACK}:{self.port}{moved}; from your machine: {self.settings.tunnel_command(self.port)}"

    def start(self, cluster: Cluster, hosts: tuple[str, ...]) -> None:
        """Start what does not run yet on these hosts; the first one is the primary."""
        if self.level == 0:
            return
        cluster.nodes[hosts[0]].start_sidecar("telemetry-server", [*SERVER_COMMAND, "--port", str(self.port)])
        for host in hosts:
            cluster.nodes[host].start_sidecar("telemetry", list(NODE_COMMAND))

    def dump(self, endpoint: Endpoint) -> list[str]:
        """Have what the nodes still know written to files before they end, where the user has named a place for it.

        Returns
        -------
        list of str
            What to tell: ``host:path`` of each file, and why others are missing.
        """
        if self.level == 0 or not self.settings.dump_dir:
            return []
        try:
            with endpoint.connect(timeout_s=DUMP_DEADLINE_S) as client:
                asker = NodeAsker(client, endpoint)
                dumps = request_dump(asker, self.settings.dump_node, deadline_s=DUMP_DEADLINE_S)
        except redis.RedisError as error:
            return [f"none was written: {error}"]
        return [*dumps.written, *dumps.missing]
