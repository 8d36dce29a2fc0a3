"""What an allocation must offer the controller, and what several of them share."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.kvstore.client.environment import NODE
from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.processes import end_descendants, environment_of
from laggard.resilience.allocation.time_to_save import TimeToSave
from laggard.resilience.decision.reasons import NodeWord

AGENT_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.agent")
CLEAR_DEADLINE_S = 5.0

Tell = Callable[[str], None]


def silent(_: str) -> None:
    """Tell nobody."""


class Commands(Protocol):
    """What is written to an agent: a pipe to it, or a channel."""

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""

    def write(self, data: bytes, /) -> int:
        """Write this; raises BrokenPipeError if the agent is gone."""

    def flush(self) -> None:
        """Send what was written."""

    def close(self) -> None:
        """Close it: the agent then ends."""


class Messages(Protocol):
    """A pipe from an agent."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines that it sends, until it has ended."""

    def __enter__(self) -> Messages:
        """Close it at the end of the block."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close it."""


class AgentProcess(Protocol):
    """A node's agent: a child process of ours, or an object that relays to it."""

    @property
    def pid(self) -> int:
        """Process id on this machine."""

    @property
    def stdin(self) -> Commands | None:
        """What is written to it."""

    @property
    def stdout(self) -> Messages | Channel | None:
        """What is read from it."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends, like :meth:`subprocess.Popen.wait`."""

    def kill(self) -> None:
        """Kill it."""


class Allocation(Protocol):
    """The nodes of a job. The first one is the primary: this machine."""

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes, including those that start in reserve; their devices are known after :meth:`discover`."""

    def discover(self, may_miss: int = 0, tell: Tell = silent) -> Mapping[str, str]:
        """Reach every node and find out what it has."""

    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a node."""

    def start_agent_again(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a lost node anew, once nothing of its old one is left there. Waits; from any thread."""

    def words_on(self, hosts: Collection[str]) -> Mapping[str, NodeWord]:
        """Return what the resource manager says is wrong with which of these nodes, within a few seconds."""

    def avoid(self, bad: Collection[str], well: Collection[str], n_nodes: int) -> str:
        """Ask the resource manager, within a few seconds, for other nodes if it starts the ending job again."""

    def clear(self, node: NodeRecord) -> None:
        """End the processes that are left on a node whose agent is gone."""

    def time_to_save(self) -> TimeToSave:
        """Return how long the job has if it is told to stop now; while it is ended, lost nodes are to be expected."""

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return the options of ``ray start`` for a node of this allocation."""

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables that a process on the node needs to find its devices, and those it does not inherit."""

    def close(self) -> None:
        """Wait a few seconds for what :meth:`clear` has begun."""


class Unmanaged:
    """What a resource manager would say, where there is none."""

    def commands_together(self, hosts: Sequence[str], argv: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        """Return nothing: no command starts something on several nodes."""
        del hosts, argv
        return {}

    def words_on(self, hosts: Collection[str]) -> dict[str, NodeWord]:
        """Return nothing."""
        del hosts
        return {}

    def avoid(self, bad: Collection[str], well: Collection[str], n_nodes: int) -> str:
        """Do nothing: the user names the nodes."""
        del bad, well, n_nodes
        return ""

    def time_to_save(self) -> TimeToSave:
        """Return nothing: only the user ends the job."""
        return TimeToSave()


def start_here() -> subprocess.Popen[bytes]:
    """Start an agent on this machine."""
    # In a session of its own, so that Ctrl-C in the terminal only reaches the controller and the program.
    return subprocess.Popen(
        AGENT_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/"
    )


def clear_this_machine(node: NodeRecord) -> None:
    """End what the agent of a node on this machine has left; the controller has adopted those processes."""
    end_descendants(lambda p: environment_of(p).get(NODE) == node.hostname, deadline_s=CLEAR_DEADLINE_S)


def device_variables(node: NodeRecord, directory: Path, *, virtual: bool) -> dict[str, str]:
    """Return the variables by which a process on a node finds its devices."""
    # Where no GPU was found there may be one all the same, of a kind that is only known to the program.
    names = {"CUDA_VISIBLE_DEVICES": ",".join(node.devices)} if node.devices else {}
    if not virtual:
        return names
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a virtual device is one core's worth
    return {VIRTUAL_DEVICES: str(len(node.devices)), VIRTUAL_DEVICE_DIR: str(directory), **names, **one_thread}


def loopback_network() -> str:
    """Return a random prefix of loopback addresses (``127.x.y``), so that jobs on one machine share no addresses."""
    # Never `127.0`: Ray replaces 127.0.0.1 by another address of the machine.
    return f"127.{secrets.randbelow(253) + 2}.{secrets.randbelow(256)}"
