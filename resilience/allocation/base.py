"""What the controller needs of an allocation."""

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
from resilience.node import AgentProcess
from resilience.processes import end_descendants, environment_of

__all__ = ["Allocation", "AllocationError", "clear_this_machine", "device_variables", "loopback_network", "start_here"]

AGENT_COMMAND = (sys.executable, "-m", "resilience.agent")
CLEAR_DEADLINE_S = 5.0


class AllocationError(RuntimeError):
    """The nodes are not to be had; the message names those that are missing, and the way out."""


class Allocation(Protocol):
    """The nodes of a job. The first one is the primary: this machine."""

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes, those that begin in the reserve included; their devices are known after :meth:`muster`."""

    def muster(self) -> None:
        """Reach every node and learn what it has.

        Raises
        ------
        AllocationError
            If nodes do not answer; it names all of them.
        """

    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a node, its standard input and output piped to us."""

    def clear(self, node: NodeRecord) -> None:
        """End whatever a node whose agent is gone has left."""

    def is_ending(self) -> bool:
        """Whether the resource manager is ending the whole job, so that lost nodes are no news."""

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return what ``ray start`` needs to know of this kind of node."""

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables with which a process on the node finds its devices, and what it would not inherit.

        Parameters
        ----------
        node
            The node.
        directory
            The node's own private folder.
        """

    def close(self) -> None:
        """Wait, not for long, for what :meth:`clear` has begun."""


def start_here() -> subprocess.Popen[bytes]:
    """Start an agent on this machine."""
    # A session of its own: Ctrl-C in the terminal is for the controller and the program.
    return subprocess.Popen(
        AGENT_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/"
    )


def clear_this_machine(node: NodeRecord) -> None:
    """End what an agent of this machine has left: the controller has adopted it."""
    end_descendants(lambda p: environment_of(p).get(NODE) == node.hostname, deadline_s=CLEAR_DEADLINE_S)


def device_variables(node: NodeRecord, directory: Path, *, virtual: bool) -> dict[str, str]:
    """Return the variables with which a process on a node finds its devices."""
    if not virtual:
        return {"CUDA_VISIBLE_DEVICES": ",".join(node.devices)}
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a virtual device is one core's worth
    return {VIRTUAL_DEVICES: str(len(node.devices)), VIRTUAL_DEVICE_DIR: str(directory), **one_thread}


def loopback_network() -> str:
    """Return the first three bytes of a network on the loopback device, so that jobs side by side share no addresses.

    Never 127.0.x.y: Ray takes 127.0.0.1 for "find a better address".
    """
    return f"127.{secrets.randbelow(253) + 2}.{secrets.randbelow(256)}"
