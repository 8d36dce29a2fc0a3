"""Errors of the ``laggard`` command and the controller.

``StopRequested`` (:mod:`laggard.resilience.controller.stopping`) is not among them: ``except LaggardError`` must not
catch a stop that the user asks for.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from laggard.errors import LaggardError
from laggard.resilience.text import abbreviated, counted

# What so many groups of hosts complained of says enough.
MAX_COMPLAINTS = 2


class UsageError(LaggardError, ValueError):
    """Options that contradict each other, or a value that cannot be used.

    Attributes
    ----------
    subject
        What is wrong, as the user gave it: ``--nodes=5``.
    problem
        What is wrong with it; empty where the subject says it all.
    fix
        What to do about it; may be empty.
    """

    subject: str
    problem: str = ""
    fix: str = ""

    def __str__(self) -> str:
        sentence = f"{self.subject} {self.problem}".strip()
        return f"{sentence}: {self.fix}" if self.fix else sentence


class ProgramError(LaggardError, ValueError):
    """The program does not exist or cannot be run."""

    program: str
    problem: str
    template = "{program} {problem}"


class AllocationError(LaggardError, RuntimeError):
    """The job's nodes are not available."""

    reason: str
    template = "{reason}"


class NodeAddressError(AllocationError):
    """A node has no address at which the others could reach it; ``reason`` says what was found instead."""

    host: str
    template = "{host} {reason}"


class UnreachableNodesError(AllocationError):
    """The agents of some nodes did not answer; ``reason`` names what they should have been reached by.

    Attributes
    ----------
    complaints
        Last line that the transport wrote to standard error, by host.
    example
        A command with which the user can try one of them.
    """

    complaints: Mapping[str, str]
    example: Sequence[str]
    template = "{reason} from {_hosts}: try {_command}"

    @property
    def _hosts(self) -> str:
        by_complaint: dict[str, list[str]] = {}
        for host, complaint in self.complaints.items():
            by_complaint.setdefault(complaint.replace(host, ""), []).append(host)  # it often begins with the host
        parts = [f"{abbreviated(hosts)} ({self.complaints[hosts[0]]})" for hosts in by_complaint.values()]
        left = len(parts) - MAX_COMPLAINTS
        return ", ".join(parts[:MAX_COMPLAINTS]) + (f", and {counted(left, 'other', 'others')}" if left > 0 else "")

    @property
    def _command(self) -> str:
        return shlex.join(self.example)


class NotJoinedError(AllocationError):
    """Nodes on which laggard should have been started by somebody else have not joined; ``reason`` says since when."""

    hosts: Sequence[str]
    address: str
    template = "{_listed} did not join at {address} {reason}: does the same command run there, with the same secret?"

    @property
    def _listed(self) -> str:
        return abbreviated(self.hosts)


class ResourceManagerError(AllocationError):
    """A command of the resource manager is missing or failed, or it did not answer."""

    command: str
    template = "{command} {reason}"


class NodeHistoryError(LaggardError, RuntimeError):
    """What the site remembers of its nodes cannot be read or added to."""

    reason: str
    template = "--node-history cannot be used: {reason}"


class ClusterError(LaggardError, RuntimeError):
    """The nodes did not start, or could not be changed."""

    reason: str
    template = "{reason}"


class NodeDownError(ClusterError):
    """A node that should be in use is lost; `Cluster.lost` names it too."""

    host: str
    template = "{host} is not up: {reason}"


class LeftoversError(ClusterError):
    """Processes of an old launch did not end in time on some nodes; ``reason`` says which."""

    hosts: Sequence[str]
    template = "{reason} on {_listed}"

    @property
    def _listed(self) -> str:
        return abbreviated(self.hosts)


class ProcessesStillRunningError(LaggardError, TimeoutError):
    """Processes of this machine did not end in ``deadline_s`` seconds, though they were killed.

    Attributes
    ----------
    pids
        Their process ids.
    states
        What each of them is doing, if it is known.
    """

    pids: Sequence[int]
    deadline_s: float
    states: Sequence[str] = ()
    template = "processes {_named} could not be ended within {deadline_s:g} s"

    @property
    def _named(self) -> str:
        states = self.states or ("",) * len(self.pids)
        named = [f"{pid} ({state})" if state else f"{pid}" for pid, state in zip(self.pids, states, strict=True)]
        return ", ".join(named)


class MessageError(LaggardError, ValueError):
    """A message between the controller and an agent cannot be read; what it holds is not shown, as it may be secret."""

    problem: str
    template = "{problem}"
