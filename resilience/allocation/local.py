"""Virtual nodes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation.base import (
    Allocation,
    ChildAgent,
    clear_this_machine,
    device_variables,
    loopback_network,
    start_here,
)

OBJECT_STORE_BYTES = 200_000_000


class LocalAllocation(Allocation):
    """Virtual nodes on this machine: each has a loopback address, a host name and some devices of its own."""

    def __init__(self, n_nodes: int, virtual_gpus: int, gpus: Sequence[str] = ()) -> None:
        network = loopback_network()
        self._virtual = virtual_gpus > 0
        virtual = [str(gpu) for gpu in range(virtual_gpus)]
        self.nodes = tuple(
            NodeRecord(f"node{i + 1}", f"{network}.{i + 1}", tuple(virtual or gpus[i::n_nodes])) for i in range(n_nodes)
        )

    def machine_of(self, host: str) -> str:
        """Return nothing: what becomes of a virtual node says nothing of another job's."""
        del host
        return ""

    def start_agent(self, node: NodeRecord) -> ChildAgent:
        """Start the agent of a node."""
        del node  # they are all on this machine
        return start_here()

    def start_agent_again(self, node: NodeRecord) -> ChildAgent:
        """Start the agent of a lost node anew, once nothing of its old one is left."""
        clear_this_machine(node)
        return start_here()

    def clear(self, node: NodeRecord) -> None:
        """End the processes that are left on a node whose agent is gone."""
        clear_this_machine(node)

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return the options of ``ray start`` for a virtual node."""
        # Virtual nodes share the machine's memory, so none may take Ray's default, a third of it.
        return [f"--num-gpus={len(node.devices)}", f"--object-store-memory={OBJECT_STORE_BYTES}"]

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables by which a process on the node finds its devices."""
        if not node.devices and any(other.devices for other in self.nodes):
            return {"CUDA_VISIBLE_DEVICES": ""}  # they were dealt out, and it has got none
        return device_variables(node, directory, virtual=self._virtual)
