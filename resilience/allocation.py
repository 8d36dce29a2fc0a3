"""Allocations: the nodes that we were given, and how to start a process on each."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from kvstore.control import NodeRecord
from kvstore.environment import NODE
from resilience.processes import end_descendants, environment_of

__all__ = ["Allocation", "LocalAllocation"]

AGENT_COMMAND = (sys.executable, "-m", "resilience.agent")
OBJECT_STORE_BYTES = 200_000_000
CLEAR_DEADLINE_S = 5.0


class Allocation(Protocol):
    """The nodes of a job. The first one is the primary: this machine."""

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes, those that begin in the reserve included."""

    def start_agent(self, node: NodeRecord) -> subprocess.Popen[bytes]:
        """Start the agent of a node, its standard input and output piped to us."""

    def clear(self, node: NodeRecord) -> None:
        """End whatever a node whose agent is gone has left."""

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return what ``ray start`` needs to know of this kind of node."""

    def device_variables(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables with which a process on the node finds its devices; ``directory`` is the node's own."""


class LocalAllocation:
    """Virtual nodes on this machine: each a loopback address, a host name and some virtual devices of its own.

    Parameters
    ----------
    n_nodes
        How many virtual nodes.
    virtual_gpus
        Virtual devices of each node; 0 where the machine's GPUs are to be used.
    gpus
        Names of the machine's GPUs, dealt out to the nodes in turn.
    """

    def __init__(self, n_nodes: int, virtual_gpus: int, gpus: Sequence[str] = ()) -> None:
        # A network of our own on the loopback device, so that jobs side by side do not share addresses.
        # Never 127.0.x.y: Ray takes 127.0.0.1 for "find a better address".
        network = f"127.{secrets.randbelow(253) + 2}.{secrets.randbelow(256)}"
        self._virtual = virtual_gpus > 0
        virtual = [str(gpu) for gpu in range(virtual_gpus)]
        self.nodes = tuple(
            NodeRecord(f"node{i + 1}", f"{network}.{i + 1}", tuple(virtual or gpus[i::n_nodes])) for i in range(n_nodes)
        )

    def start_agent(self, node: NodeRecord) -> subprocess.Popen[bytes]:
        """Start the agent of a node, its standard input and output piped to us."""
        del node  # they are all on this machine
        # A session of its own: Ctrl-C in the terminal is for the controller and the program.
        return subprocess.Popen(
            AGENT_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/"
        )

    def clear(self, node: NodeRecord) -> None:
        """End whatever a node whose agent is gone has left: the controller has adopted it."""
        end_descendants(lambda p: environment_of(p).get(NODE) == node.hostname, deadline_s=CLEAR_DEADLINE_S)

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return what ``ray start`` needs to know of this kind of node."""
        # Virtual nodes share one machine's memory, so none may take the usual third of it.
        return [f"--num-gpus={len(node.devices)}", f"--object-store-memory={OBJECT_STORE_BYTES}"]

    def device_variables(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables with which a process on the node finds its devices."""
        if not self._virtual:
            return {"CUDA_VISIBLE_DEVICES": ",".join(node.devices)}
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a virtual device is one core's worth
        return {VIRTUAL_DEVICES: str(len(node.devices)), VIRTUAL_DEVICE_DIR: str(directory), **one_thread}
