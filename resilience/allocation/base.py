"""What an allocation must offer the controller, and what several of them share."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, cast

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.kvstore.client.environment import NODE
from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.processes import end_descendants, environment_of
from laggard.resilience.allocation.time_to_save import TimeToSave
from laggard.resilience.decision.reasons import NodeWord

AGENT_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.agent")
CLEAR_DEADLINE_S = 5.0

Tell = Callable[[str], None]


def silent(_: str) -> None:
    """Tell nobody."""


class AgentProcess(Protocol):
    """A node's agent, as this machine reaches it."""

    @property
    def pid(self) -> int:
        """Process id, on this machine, of the agent or of what has started it."""

    def read(self, take: Callable[[bytes], None], tell_end: Callable[[], None], /) -> None:
        """Have something called, in another thread, with all that it sends, and at the end."""

    def write(self, data: bytes, /) -> object:
        """Send it this; raises BrokenPipeError if it is gone."""

    def close(self) -> None:
        """Tell it to end."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends, like :meth:`subprocess.Popen.wait`."""

    def kill(self) -> None:
        """Kill it."""


class ChildAgent:
    """An agent that is a child process of ours, with pipes to its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._stdin, self._stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        self._reader: threading.Thread | None = None

    def read(self, take: Callable[[bytes], None], tell_end: Callable[[], None]) -> None:
        """Have something called with each line that it sends, and at the end, in a thread."""
        self._reader = threading.Thread(target=self._read, args=(take, tell_end), name="agent", daemon=True)
        self._reader.start()

    def _read(self, take: Callable[[bytes], None], tell_end: Callable[[], None]) -> None:
        try:
            with self._stdout as lines:
                for line in lines:
                    take(line)
        finally:
            tell_end()

    def write(self, data: bytes) -> None:
        """Send it this."""
        self._stdin.write(data)
        self._stdin.flush()

    def close(self) -> None:
        """Tell it to end."""
        self._stdin.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and what it has sent is read."""
        exit_code = self._process.wait(timeout)
        if self._reader is not None:
            self._reader.join(timeout)
        return exit_code

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()


class Unmanaged:
    """What gives the nodes and may say something about them; where nothing does, it says nothing."""

    def words_on(self, hosts: Collection[str]) -> Mapping[str, NodeWord]:
        """Return what the resource manager says is wrong with which of these nodes, within a few seconds."""
        del hosts
        return {}

    def avoid(self, bad: Collection[str], well: Collection[str], n_nodes: int) -> str:
        """Ask it, within a few seconds, for other nodes if it starts the ending job again; return what was changed."""
        del bad, well, n_nodes
        return ""

    def remark(self, machine: str, why: str) -> None:
        """Tell its operators, within a few seconds, what speaks against a machine, if they want to hear that."""

    def time_to_save(self) -> TimeToSave:
        """Return how long the job has if it is told to stop now; while it is ended, lost nodes are to be expected."""
        return TimeToSave()


class Allocation(ABC):
    """The nodes of a job. The first one is the primary: this machine.

    ``nodes`` are all of them, including those that start in reserve; their devices are known after :meth:`discover`.
    """

    nodes: tuple[NodeRecord, ...]
    manager: Unmanaged = Unmanaged()

    def discover(self, may_miss: int = 0, tell: Tell = silent) -> Mapping[str, str]:
        """Reach every node and find out what it has; return what is wrong with those that do not answer."""
        del may_miss, tell
        return {}

    @abstractmethod
    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a node."""

    @abstractmethod
    def start_agent_again(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a lost node anew, once nothing of its old one is left there. Waits; from any thread."""

    @abstractmethod
    def clear(self, node: NodeRecord) -> None:
        """End the processes that are left on a node whose agent is gone."""

    @abstractmethod
    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables that a process on the node needs to find its devices, and those it does not inherit."""

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return the options of ``ray start`` for a node of this allocation."""
        del node
        return []

    def has_new_agent(self, node: NodeRecord) -> bool:
        """Return whether a new agent of a lost node has come by itself, and waits to be used."""
        del node
        return False

    def machine_of(self, host: str) -> str:
        """Return what the site calls the machine on which a node is now; empty: the node is a virtual one."""
        return host

    def announce_end(self, exit_code: int, remarks: Mapping[str, str]) -> None:  # noqa: B027 - as below
        """Tell the nodes that the job ends, where something there ends like it, and what to remark on which host."""

    def close(self) -> None:  # noqa: B027 - there may be nothing to do
        """Wait a few seconds for what :meth:`clear` has begun."""


class Transport(Unmanaged, ABC):
    """A way to run a process on another node, with pipes to its standard input and output."""

    name: str  # of the program that does it

    @abstractmethod
    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a node and ends when it does."""

    def commands_together(self, hosts: Sequence[str], argv: Sequence[str]) -> Mapping[tuple[str, ...], list[str]]:
        """Return the commands that run ``argv`` on several nodes each, and those nodes; the others are left out."""
        del hosts, argv
        return {}

    def environment(self) -> Mapping[str, str]:
        """Return the variables of our environment that processes on a node should have but do not inherit."""
        return {}


def start_here() -> ChildAgent:
    """Start an agent on this machine."""
    # In a session of its own, so that Ctrl-C in the terminal only reaches the controller and the program.
    pipe = subprocess.PIPE
    return ChildAgent(subprocess.Popen(AGENT_COMMAND, stdin=pipe, stdout=pipe, start_new_session=True, cwd="/"))


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
