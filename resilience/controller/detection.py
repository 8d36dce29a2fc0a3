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
from pathlib import Path

from laggard.kvstore.client.environment import LAUNCH
from laggard.kvstore.control import NodeRecord
from laggard.resilience.decision.options import Watched
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import UsageError
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.wire.tasks import StartTask

COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.detect")
STOP_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Detection:
    """What to watch for in a job."""

    interval_s: float | None = None  # seconds from one round of probes to the next; `None`: nothing is watched
    # Whether the program runs the probes itself. Then only the primary runs a process, which judges the readings.
    inline_probes: bool = False
    groups: Path | None = None  # file with the labels of ranks and devices; `None`: there are none
    # What is watched; of `sections`, only the program's own timings are compared, and nothing is probed
    watched: Watched = "slow-gpu"
    restart_cost_s: float | None = None  # what a restart costs; `None`: as measured
    link_interface: str = ""  # the network of which links are probed; empty: that of the nodes' addresses

    def check(self, nodes: Sequence[NodeRecord]) -> None:
        """Check that there is a device to probe."""
        if self.interval_s is not None and self.watched == "slow-gpu" and not any(node.devices for node in nodes):
            instead = "add --virtual-gpus=K, use --detect=sections, or leave it out"
            raise UsageError("--detect=slow-gpu", "finds no GPU here", instead)

    def start(self, cluster: Cluster, roster: Roster, launch: int) -> None:
        """Start the probes of a launch; on the primary the readings are judged too, whether or not it is probed."""
        if self.interval_s is None:
            return
        command = [
            *COMMAND,
            str(self.interval_s),
            *(["--inline-probes"] if self.inline_probes else []),
            f"--watched={self.watched}",
            *([] if self.groups is None else [f"--groups={self.groups}"]),
            *([] if self.restart_cost_s is None else [f"--restart-cost={self.restart_cost_s}"]),
            *([f"--link-interface={self.link_interface}"] if self.link_interface else []),
        ]
        for host in roster.up:
            node = cluster.nodes[host]
            if host == roster.primary or self._probes_on(node.record):
                node.tasks.start(StartTask(_name(launch), tuple(command), {LAUNCH: str(launch)}, restarts=True))

    def _probes_on(self, node: NodeRecord) -> bool:
        if self.watched == "slow-gpu":
            return bool(node.devices) and not self.inline_probes
        return self.watched == "slow-link"

    def stop(self, cluster: Cluster, launch: int) -> None:
        """End the probes of a launch, without waiting."""
        if self.interval_s is not None:
            for node in cluster.nodes.values():
                node.tasks.signal(_name(launch), signal.SIGTERM)

    def wait(self, cluster: Cluster, primary: str, launch: int, changed: threading.Condition) -> None:
        """Wait a moment until the primary's process has stored in State what it has learned."""
        node = cluster.nodes.get(primary)
        if self.interval_s is not None and node is not None:
            with changed:
                changed.wait_for(lambda: node.agent.gone or _name(launch) in node.tasks.ends, STOP_DEADLINE_S)


NO_DETECTION = Detection()


def _name(launch: int) -> str:
    return f"probes-{launch}"
