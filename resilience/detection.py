"""``--detect``: a detector beside the program, so that not a line of the program is changed for it.

Each launch's nodes run :mod:`resilience.detect_node` beside the program, started by their agents: with Ray or without
it, for one program or for a copy on every node.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.control import NodeRecord
from kvstore.environment import LAUNCH
from resilience.cluster import Cluster
from resilience.options import UsageError

__all__ = ["NO_DETECTION", "Detection"]

COMMAND = (sys.executable, "-m", "resilience.detect_node")
STOP_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Detection:
    """What is looked for in a job.

    Attributes
    ----------
    interval_s
        Seconds from one round of probes to the next; ``None``: no slow device is looked for.
    probes_in_turn
        Names of other probes, one of which runs with each round.
    in_gaps
        The program runs the probes itself: only the primary has something to run, which judges.
    """

    interval_s: float | None = None
    probes_in_turn: tuple[str, ...] = ()
    in_gaps: bool = False

    def check(self, nodes: Sequence[NodeRecord]) -> None:
        """Check that there is something to probe.

        Raises
        ------
        UsageError
            If no node has a device.
        """
        if self.interval_s is not None and not any(node.devices for node in nodes):
            raise UsageError("--detect=slow-gpu finds no GPU here: add --virtual-gpus=K, or leave it out")

    def start(self, cluster: Cluster, hosts: Sequence[str], launch: int) -> None:
        """Start the probes of a launch; the first host is the primary, whose process also judges."""
        if self.interval_s is None:
            return
        command = [*COMMAND, str(self.interval_s), *self.probes_in_turn, *(["--in-gaps"] if self.in_gaps else [])]
        for host in hosts:
            node = cluster.nodes[host]
            if host == hosts[0] or (node.record.devices and not self.in_gaps):
                node.start_task(_name(launch), command, {LAUNCH: str(launch)})

    def stop(self, cluster: Cluster, launch: int) -> None:
        """End the probes of a launch, without waiting."""
        if self.interval_s is not None:
            for node in cluster.nodes.values():
                node.signal_task(_name(launch), signal.SIGTERM)

    def wait(self, cluster: Cluster, primary: str, launch: int, news: threading.Condition) -> None:
        """Wait, not for long, until the primary's process has kept in State what it learned."""
        node = cluster.nodes.get(primary)
        if self.interval_s is not None and node is not None:
            with news:
                news.wait_for(lambda: node.gone or _name(launch) in node.task_exits, STOP_DEADLINE_S)


NO_DETECTION = Detection()


def _name(launch: int) -> str:
    return f"probes-{launch}"
