"""Placing a helper process on each node of the launch, with Ray. The only module of this package that needs Ray."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kvstore.control import NodeRecord
from kvstore.environment import NotInJobError

__all__ = ["NodeActors", "connect", "node_strategy", "start_on_every_node"]


class NodeActors:
    """Helper processes, one a node."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    def stop(self) -> None:
        """End them, without waiting."""
        import ray

        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)


def connect() -> None:
    """Join the job's Ray cluster, unless this process has done so already.

    Raises
    ------
    NotInJobError
        If the job has none.
    """
    import ray

    if not ray.is_initialized():
        if not os.environ.get("RAY_ADDRESS"):  # Ray would start a cluster of its own
            raise NotInJobError(
                "this job has no Ray: with --per-node, use --detect in place of a detector in the program"
            )
        ray.init()


def node_strategy(node: NodeRecord) -> Any:
    """Return the scheduling strategy that places a task or an actor on a node.

    Raises
    ------
    LookupError
        If Ray does not know the node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for known in ray.nodes():  # type: ignore[no-untyped-call]
        if known["Alive"] and known["NodeManagerAddress"] == node.address:
            return NodeAffinitySchedulingStrategy(known["NodeID"], soft=False)
    raise LookupError(f"Ray has no node {node.hostname} at {node.address}")


def start_on_every_node(nodes: Sequence[NodeRecord], actor_class: type, *arguments: object) -> NodeActors:
    """Start an actor of a plain class on each node; it takes no processor and no GPU from the program."""
    import ray

    connect()
    remote: Any = ray.remote(actor_class)
    return NodeActors(
        [
            remote.options(num_cpus=0, num_gpus=0, scheduling_strategy=node_strategy(node)).remote(*arguments)
            for node in nodes
        ]
    )
