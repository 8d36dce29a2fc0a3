"""About a node and its agent as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laggard.resilience.wire.message import Command, Report


@dataclass(frozen=True, slots=True)
class SetUp(Command):
    """Write the node's private files, mode 0600, and use these variables for all that is started from now on."""

    directory: str
    files: Mapping[str, str] = field(default_factory=dict)  # by name
    environment: Mapping[str, str] = field(default_factory=dict)
    n_nodes: int = 1  # of the job: the timing of heartbeats follows from it


@dataclass(frozen=True, slots=True)
class Ping(Command):
    """Answer, after everything that was noticed by then has been reported."""


@dataclass(frozen=True, slots=True)
class Pong(Report):
    """The answer to a ping."""

    time_s: float  # Unix time by the node's clock


@dataclass(frozen=True, slots=True)
class ToldToEnd(Report):
    """Somebody else, such as Slurm, has told the agent to end; it does so when its tasks have had time to save."""


@dataclass(frozen=True, slots=True)
class JobEnded(Command):
    """The job has ended: what has started the agent ends like it."""

    exit_code: int
    remark: str = ""  # what the operators of the node should know


@dataclass(frozen=True, slots=True)
class TakenIn(Report):
    """The controller uses the agent; told to what has started it."""


@dataclass(frozen=True, slots=True)
class Crashed(Report):
    """The agent ends by an error of its own."""

    why: str
