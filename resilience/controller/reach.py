"""Whether every node reaches the state server: a firewall may let agents reach the controller, and nothing else."""

from __future__ import annotations

from laggard.kvstore.client.connection import Endpoint, is_loopback
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.reading.targets import Target

# A node gives up a connection after four seconds; a busy one takes some to ask.
ANSWER_S = 20.0


def who_cannot_reach(server: Endpoint, cluster: Cluster, primary: str) -> list[str]:
    """Return which nodes cannot connect to the server; waits for their answers."""
    others = [node for host, node in cluster.nodes.items() if host != primary and not is_loopback(server.host)]
    for node in others:
        node.checks.ask_targets([Target("port", server.host, server.port)], own=())
    hosts = {node.record.hostname for node in others}
    cluster.wait_for(
        lambda: all(node.checks.answers is not None for node in others) or not hosts.isdisjoint(cluster.lost()),
        ANSWER_S,
    )
    return [node.record.hostname for node in others if any(node.checks.answers or ())]
