"""Whether every node reaches the state server: a firewall may let agents reach the controller, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.kvstore.client.connection import Endpoint, is_loopback
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node
from laggard.resilience.reading.targets import Target

# A node gives up a connection after four seconds; a busy one takes some to ask.
ANSWER_S = 20.0
# A network that has just changed, as when a pod is made anew, loses packets for seconds.
N_TRIES = 2


def who_cannot_reach(server: Endpoint, cluster: Cluster, primary: str) -> list[str]:
    """Return which nodes cannot connect to the server; waits for their answers."""
    cut_off = [node for host, node in cluster.nodes.items() if host != primary and not is_loopback(server.host)]
    for _ in range(N_TRIES):
        cut_off = _without_answer(cut_off, server, cluster)
    return [node.record.hostname for node in cut_off]


def _without_answer(nodes: Sequence[Node], server: Endpoint, cluster: Cluster) -> list[Node]:
    for node in nodes:
        node.checks.ask_targets([Target("port", server.host, server.port)], own=())
    hosts = {node.record.hostname for node in nodes}
    cluster.wait_for(
        lambda: all(node.checks.answers is not None for node in nodes) or not hosts.isdisjoint(cluster.lost()),
        ANSWER_S,
    )
    return [node for node in nodes if any(node.checks.answers or ())]
