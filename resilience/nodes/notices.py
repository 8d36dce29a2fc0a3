"""What a user should be told of the nodes, as records (:mod:`laggard.resilience.nodes.wording` words them). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.resilience.decision.reasons import StuckProcesses
from laggard.resilience.wire.node import Crashed
from laggard.resilience.wire.tasks import TaskEnded, WillRestart
from laggard.system.clock_offset import ClockOffset


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An agent's messages mean nothing to us: the error's type, and its text."""

    kind: str
    problem: str


@dataclass(frozen=True, slots=True)
class NotHeld:
    """Others use a node of a Ray cluster that we did not start, so Ray may place the program there, too."""


About = TaskEnded | WillRestart | ClockOffset | Crashed | StuckProcesses | Unreadable | NotHeld


@dataclass(frozen=True, slots=True)
class Notice:
    """What there is to say about one node."""

    host: str
    about: About
