"""Nodes on separate machines, of which each one's handshake says what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.handshake import found_here, own_gpus
from laggard.resilience.allocation.base import Allocation, Tell, device_variables
from laggard.resilience.text import abbreviated
from laggard.resilience.wire.handshake import Handshake

LEAST_SHARED_BYTES = 128 << 20


class MachineAllocation(Allocation):
    """Nodes on separate machines; the primary is this machine."""

    def __init__(self, addresses: Mapping[str, str], virtual_gpus: int) -> None:
        self._virtual = virtual_gpus > 0
        virtual = tuple(str(gpu) for gpu in range(virtual_gpus))
        self.nodes = tuple(NodeRecord(host, address, virtual) for host, address in addresses.items())
        self._primary = next(iter(addresses))
        self._n_cpus: dict[str, int] = {}
        self._shared_bytes: dict[str, int] = {}
        self._machines: dict[str, str] = {}

    def machine_of(self, host: str) -> str:
        """Return what the site calls the machine on which a node is now."""
        return self._machines.get(host) or host

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return the options of ``ray start`` for a node on another machine."""
        # Ray would count all processors of the machine, even those that are not ours to use.
        return [f"--num-gpus={len(node.devices)}", f"--num-cpus={self._n_cpus[node.hostname]}"]

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables that a process on the node needs to find its devices."""
        return device_variables(node, directory, virtual=self._virtual)

    def _learn_primary(self) -> None:
        self._learn(self._primary, found_here([] if self._virtual else own_gpus()))

    def _tell_small(self, tell: Tell) -> None:
        """Tell on which nodes there is too little shared memory: containers often have 64 MiB."""
        small = {host: size for host, size in self._shared_bytes.items() if size < LEAST_SHARED_BYTES}
        if small:
            size, hosts = f"{max(small.values()) >> 20} MiB", abbreviated([*small])
            more = "Docker: --shm-size; Kubernetes: an emptyDir with medium Memory"
            tell(f"{size} of shared memory on {hosts}: NCCL, data loaders and checkpoints want more /dev/shm ({more})")

    def _learn(self, host: str, handshake: Handshake) -> None:
        self._n_cpus[host] = handshake.n_cpus
        self._shared_bytes[host] = handshake.shared_memory_bytes
        self._machines[host] = handshake.machine
        if not self._virtual:
            self._change(host, devices=handshake.gpus)

    def _change(self, host: str, **fields: Any) -> None:
        self.nodes = tuple(replace(node, **fields) if node.hostname == host else node for node in self.nodes)
