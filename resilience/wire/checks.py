"""About the state of a node: its check, what it can reach, where its ranks stand, and its logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laggard.resilience.decision.evidence import NodeCheck
from laggard.resilience.decision.stacks import RankStack
from laggard.resilience.reading.targets import NoAnswer, Target
from laggard.resilience.wire.message import Command, Report


@dataclass(frozen=True, slots=True)
class CheckNode(Command):
    """Have the node and these GPUs checked; the agent passes the same line on to the process that does it."""

    devices: tuple[str, ...]
    probe: bool = False  # whether a test kernel is to be run on each GPU too


@dataclass(frozen=True, slots=True)
class NodeChecked(Report):
    """The node's state; None: there was no answer in time."""

    found: NodeCheck | None


@dataclass(frozen=True, slots=True)
class AskTargets(Command):
    """Find out whether these answer; the agent passes the same line on to the process that does it."""

    number: int  # of the question
    targets: tuple[Target, ...]
    own: tuple[str, ...] = ()  # addresses of the job's own nodes: to find one there is no outage


@dataclass(frozen=True, slots=True)
class TargetsAsked(Report):
    """Why each of them does not answer, or None if it does; empty: that could not be found out in time."""

    number: int
    answers: tuple[NoAnswer | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ListConnections(Command):
    """Say what the processes that the agent has started are connected to, and those of a program beside it."""

    program: int | None = None  # its process id


@dataclass(frozen=True, slots=True)
class Connections(Report):
    """What they are connected to, and the mounts of the network that they use."""

    found: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class DumpStacks(Command):
    """Find out where a launch's ranks stand."""

    launch: int


@dataclass(frozen=True, slots=True)
class Stacks(Report):
    """Where they stand, and what each running task had written last to its standard error by then."""

    found: tuple[RankStack, ...] = ()
    error_output: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendLogs(Command):
    """Send the end of each log of the node."""


@dataclass(frozen=True, slots=True)
class LogEnd(Report):
    """The end of one log, by file name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class LogsSent(Report):
    """All of them were sent."""
