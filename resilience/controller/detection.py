"""``--detect``: a detector beside the program, which needs no change for it.

In each launch, the agents of the nodes run :mod:`laggard.resilience.agent.detect` beside the program, with or without
Ray, for one program or for one on every node.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from laggard.kvstore.client.environment import LAUNCH
from laggard.kvstore.control import NodeRecord
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import UsageError
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.wire import encode
from laggard.resilience.wire.detection import Watch
from laggard.resilience.wire.tasks import StartTask

COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.detect")
STOP_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Detection:
    """The detector of a job."""

    watch: Watch | None = None  # what to watch for; `None`: nothing

    def check(self, nodes: Sequence[NodeRecord]) -> None:
        """Check that there is a device to probe."""
        if self.watch and "slow-gpu" in self.watch.watched and not any(node.devices for node in nodes):
            instead = "add --virtual-gpus=K, use --detect=sections, or leave it out"
            raise UsageError("--detect=slow-gpu", "finds no GPU here", instead)

    def start(self, cluster: Cluster, roster: Roster, launch: int) -> None:
        """Start the probes of a launch; on the primary the readings are judged too, whether or not it is probed."""
        if self.watch is None:
            return
        command = (*COMMAND, encode(self.watch).decode())
        for host in roster.up:
            node = cluster.nodes[host]
            if host == roster.primary or _probes_on(node.record, self.watch):
                node.tasks.start(StartTask(_name(launch), command, {LAUNCH: str(launch)}, restarts=True))

    def stop(self, cluster: Cluster, launch: int) -> None:
        """End the probes of a launch, without waiting."""
        if self.watch is not None:
            for node in cluster.nodes.values():
                node.tasks.signal(_name(launch), signal.SIGTERM)

    def wait(self, cluster: Cluster, primary: str, launch: int, changed: threading.Condition) -> None:
        """Wait a moment until the primary's process has stored in State what it has learned."""
        node = cluster.nodes.get(primary)
        if self.watch is not None and node is not None:
            with changed:
                changed.wait_for(lambda: node.agent.gone or _name(launch) in node.tasks.ends, STOP_DEADLINE_S)


NO_DETECTION = Detection()


def _probes_on(node: NodeRecord, watch: Watch) -> bool:
    probes_devices = "slow-gpu" in watch.watched and bool(node.devices) and not watch.inline_probes
    return probes_devices or "slow-link" in watch.watched


def _name(launch: int) -> str:
    return f"probes-{launch}"
