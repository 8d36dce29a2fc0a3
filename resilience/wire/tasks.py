"""About the processes of a node: tasks, most of which belong to one launch, and what launches have left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from laggard.resilience.decision.reasons import StuckProcesses
from laggard.resilience.wire.message import Command, Report

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class StartTask(Command):
    """Start a process."""

    name: str  # a different one for each launch
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # beside the node's own; has the launch's number
    directory: str = ""  # empty: the node's private folder
    files: Mapping[str, str] = field(default_factory=dict)  # private ones of the node that it needs, by name
    relayed: bool = False  # whether its output comes to the controller; otherwise it goes to a log
    outlives_launches: bool = False  # a sidecar: its standard input ends when the agent does
    restarts: bool = False  # started again, after a wait that grows, when it ends without a signal of ours
    writes_stacks: bool = False  # whether its Python processes are to write their stacks when the agent asks them
    may_be_warm: bool = False  # forked from the warm process if that is possible
    records_imports: bool = False


@dataclass(frozen=True, slots=True)
class SignalTask(Command):
    """Send a signal to a task, if it runs; it is not started again."""

    name: str
    signum: int


@dataclass(frozen=True, slots=True)
class Printed(Command):
    """So many bytes of output were printed: pass on more."""

    n_bytes: int


@dataclass(frozen=True, slots=True)
class EndLeftovers(Command):
    """End what is left of launches below a number."""

    below: int


@dataclass(frozen=True, slots=True)
class LeftoversEnded(Report):
    """How many processes were ended, and what could not be."""

    n_ended: int
    stuck: StuckProcesses | None = None


@dataclass(frozen=True, slots=True)
class Output(Report):
    """A piece of a task's output."""

    name: str
    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class TaskStarted(Report):
    """A task that might have been forked from the warm process runs; empty: it was forked."""

    name: str
    why_not: str


@dataclass(frozen=True, slots=True)
class TaskEnded(Report):
    """A task has ended for good."""

    name: str
    exit_code: int  # minus the signal number if it was killed by a signal
    pid: int  # on the node; 0 if it could not be started
    ended_s: float  # Unix time by the node's clock
    ran_s: float
    error_output: str  # the end of its standard error
    why: str = ""  # the last line of its log
    raised_s: float = 0.0  # when it began to write its last traceback, by the same clock; 0: it wrote none


@dataclass(frozen=True, slots=True)
class WillRestart(Report):
    """A task has ended, and is started again in a while."""

    name: str
    exit_code: int
    why: str
    again_s: float
