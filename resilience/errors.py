"""Errors of the ``laggard`` command and the controller, as a tree.

::

    LaggardError
    ├── UsageError (ValueError)                options that contradict each other, or a wrong value
    ├── ProgramError (ValueError)              the program does not exist or cannot be run
    ├── AllocationError (RuntimeError)         the nodes of the job cannot be had
    │   ├── NodeAddressError                   a node's name has no address that the others could reach
    │   ├── UnreachableNodesError              no agent answered from some nodes
    │   └── ResourceManagerError               a command of Slurm failed or did not answer
    ├── ClusterError (RuntimeError)            the nodes did not start, or could not be changed
    │   ├── NodeDownError                      a node that should be in use is lost
    │   └── LeftoversError                     processes of an old launch would not end on some nodes
    ├── ProcessesStillRunningError             processes of this machine that would not end (TimeoutError)
    └── MessageError (ValueError)              what the controller and an agent say to each other cannot be read

All of them can be pickled. ``StopRequested`` (:mod:`laggard.resilience.controller.stopping`) is not among them: a
stop that the user asks for is not an error, and ``except LaggardError`` must not catch it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from laggard.errors import LaggardError
from laggard.resilience.text import abbreviated, counted

__all__ = [
    "AllocationError",
    "ClusterError",
    "LeftoversError",
    "MessageError",
    "NodeAddressError",
    "NodeDownError",
    "ProcessesStillRunningError",
    "ProgramError",
    "ResourceManagerError",
    "UnreachableNodesError",
    "UsageError",
]

# What so many groups of hosts complained of says enough.
MAX_COMPLAINTS = 2


class UsageError(LaggardError, ValueError):
    """Options that contradict each other, or a value that cannot be used.

    Attributes
    ----------
    subject : str
        What is wrong, as the user gave it: ``--nodes=5``.
    problem : str
        What is wrong with it; empty where the subject says it all.
    fix : str
        What to do about it; may be empty.
    """

    def __init__(self, subject: str, problem: str = "", fix: str = "") -> None:
        super().__init__(subject, problem, fix)
        self.subject = subject
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        sentence = f"{self.subject} {self.problem}".strip()
        return f"{sentence}: {self.fix}" if self.fix else sentence


class ProgramError(LaggardError, ValueError):
    """The program does not exist or cannot be run."""

    def __init__(self, program: str, problem: str) -> None:
        super().__init__(program, problem)
        self.program = program
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.program} {self.problem}"


class AllocationError(LaggardError, RuntimeError):
    """The nodes of the job cannot be had."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NodeAddressError(AllocationError):
    """A node has no IPv4 address at which the other nodes could reach it.

    Attributes
    ----------
    host : str
        Name of the node.
    reason : str
        What was found in place of an address, and what to check.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(reason)
        self.args = (host, reason)
        self.host = host

    def __str__(self) -> str:
        return f"{self.host} {self.reason}"


class UnreachableNodesError(AllocationError):
    """The agents of some nodes did not answer.

    Attributes
    ----------
    transport : str
        The program by which they should have been reached: ``srun`` or ``ssh``.
    complaints : dict of str to str
        Last line that the transport wrote to standard error, by host.
    example : tuple of str
        A command with which the user can try one of them.
    """

    def __init__(self, transport: str, complaints: Mapping[str, str], example: Sequence[str]) -> None:
        super().__init__(f"no answer by {transport}")
        self.transport = transport
        self.complaints = dict(complaints)
        self.example = tuple(example)
        self.args = (transport, self.complaints, self.example)

    def __str__(self) -> str:
        by_complaint: dict[str, list[str]] = {}
        for host, complaint in self.complaints.items():
            by_complaint.setdefault(complaint.replace(host, ""), []).append(host)  # it often begins with the host
        parts = [f"{abbreviated(hosts)} ({self.complaints[hosts[0]]})" for hosts in by_complaint.values()]
        left = len(parts) - MAX_COMPLAINTS
        hosts = ", ".join(parts[:MAX_COMPLAINTS]) + (f", and {counted(left, 'other', 'others')}" if left > 0 else "")
        return f"no answer by {self.transport} from {hosts}: try {shlex.join(self.example)}"


class ResourceManagerError(AllocationError):
    """A command of the resource manager is missing, failed, or did not answer."""

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(problem)
        self.args = (command, problem)
        self.command = command
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.command} {self.problem}"


class ClusterError(LaggardError, RuntimeError):
    """The nodes did not start, or could not be changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NodeDownError(ClusterError):
    """A node that should be in use is lost; `Cluster.lost` names it too."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(reason)
        self.args = (host, reason)
        self.host = host

    def __str__(self) -> str:
        return f"{self.host} is not up: {self.reason}"


class LeftoversError(ClusterError):
    """Processes of an old launch did not end in time on some nodes.

    Attributes
    ----------
    processes : str
        Which processes, in words.
    hosts : tuple of str
        The nodes.
    """

    def __init__(self, processes: str, hosts: Sequence[str]) -> None:
        super().__init__(f"{processes} could not be ended")
        self.processes = processes
        self.hosts = tuple(hosts)
        self.args = (processes, self.hosts)

    def __str__(self) -> str:
        return f"{self.processes} could not be ended on {abbreviated(self.hosts)}"


class ProcessesStillRunningError(LaggardError, TimeoutError):
    """Processes of this machine did not end in time, though they were killed.

    Attributes
    ----------
    pids : list of int
        Their process ids.
    deadline_s : float
        How long they were given, in seconds.
    states : tuple of str
        What each of them is doing, if it is known.
    """

    def __init__(self, pids: Sequence[int], deadline_s: float, states: Sequence[str] = ()) -> None:
        super().__init__(list(pids), deadline_s, tuple(states))
        self.pids = list(pids)
        self.deadline_s = deadline_s
        self.states = tuple(states)

    def __reduce__(self) -> tuple[type[ProcessesStillRunningError], tuple[list[int], float, tuple[str, ...]]]:
        return type(self), (self.pids, self.deadline_s, self.states)

    def __str__(self) -> str:
        states = self.states or ("",) * len(self.pids)
        named = [f"{pid} ({state})" if state else f"{pid}" for pid, state in zip(self.pids, states, strict=True)]
        return f"processes {', '.join(named)} could not be ended within {self.deadline_s:g} s"


class MessageError(LaggardError, ValueError):
    """A message between the controller and an agent cannot be read; what it holds is not shown, as it may be secret.

    Attributes
    ----------
    where : str
        The message, or one of its fields.
    problem : str
        What is wrong with it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where} {self.problem}"
