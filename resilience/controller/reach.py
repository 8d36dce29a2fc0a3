"""Whether every node reaches the state server: a firewall may let agents reach the controller, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from laggard.kvstore.client.connection import Endpoint, is_loopback
from laggard.resilience.agent.target_check import CONNECT_S
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node
from laggard.resilience.reading.targets import Target

# A busy node takes some seconds to ask.
ANSWER_S = 20.0
# A node that cannot connect is named by then, unless it was so busy that its first answer took longer.
NAMED_S = 10.0


def who_cannot_reach(
    server: Endpoint, cluster: Cluster, primary: str, clock: Callable[[], float] = time.monotonic
) -> list[str]:
    """Return which nodes cannot connect to the server; waits for their answers."""
    until_s = clock() + NAMED_S
    others = [node for host, node in cluster.nodes.items() if host != primary and not is_loopback(server.host)]
    _ask(others, server, cluster, ANSWER_S)
    cut_off = [node for node in others if any(node.checks.answers or ())]
    # A network that has just changed, as when a pod is made anew, loses packets for seconds: they are asked again.
    _ask(cut_off, server, cluster, max(CONNECT_S, until_s - clock()))
    lost = cluster.lost()
    return [
        node.record.hostname
        for node in cut_off
        if node.record.hostname not in lost and (node.checks.answers is None or any(node.checks.answers))
    ]


def _ask(nodes: Sequence[Node], server: Endpoint, cluster: Cluster, deadline_s: float) -> None:
    """Wait until these nodes have answered, but for those that are lost."""
    for node in nodes:
        node.checks.ask_targets([Target("port", server.host, server.port)], own=())

    cluster.wait_for(
        lambda: {node.record.hostname for node in nodes if node.checks.answers is None} <= {*cluster.lost()}, deadline_s
    )
