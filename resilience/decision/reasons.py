"""Why something is decided, as data: a reason is a series of facts, put into words last. Pure data.

The words are in :mod:`laggard.resilience.decision.wording`; nothing here or elsewhere reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Advice = Literal["--resilient would relaunch it", "--resilient would relaunch without it"]
OfProgram = Literal[
    "own error", "the program's", "hangs", "last failure", "last hang", "moved", "devices moved", "pause"
]
OfSave = Literal["one save back", "in place", "moved in place"]
OfReturn = Literal["answers again", "excluded for", "not excluded", "in reserve", "examined first"]
OfAccused = Literal["--resilient relaunches", "irreplaceable", "--exhaust-resources would go on", "not accused in use"]
OfLost = Literal["node", "unused", "recovers", "waiting", "not returned", "quarantined", "out of reserve"]
TooFew = Literal["nodes too few", "devices too few", "primary cannot run"]
NoProgress = Literal["no progress", "restarts used up", "hourly restarts used up"]
FactKind = Literal[Advice, OfProgram, OfSave, OfReturn, OfAccused, OfLost, TooFew, NoProgress]


@dataclass(frozen=True, slots=True)
class Fact:
    """One part of a reason: what it is, the nodes that it is about, and a number, of how many, or a time in seconds."""

    kind: FactKind
    hosts: tuple[str, ...] = ()
    number: float = 0.0
    of: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """How the nodes in use change from one launch to the next."""

    without: tuple[str, ...] = ()  # nodes no longer in use, the primary not among them, and those from the reserve
    came: tuple[str, ...] = ()
    primary: str = ""  # the primary if its devices are no longer in use, or are so again; empty: neither
    primary_is_back: bool = False  # whether they are in use again
    alone: str = ""  # the node that goes on alone; empty: there are more, or nothing was taken away
    set_aside: tuple[str, ...] = ()  # nodes that were in use and wait in the reserve: nothing is proved against them


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user or the resource manager has asked the job to end, by a signal; ``why`` may be empty."""

    signum: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class StuckProcesses:
    """Processes that were killed and have not ended in time, with what each is doing; none: not known which."""

    within_s: float
    pids: tuple[int, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhyLost:
    """Why a node counts as lost: for how many seconds its agent was silent, or what could not be ended there."""

    kind: Literal["ended", "told to end", "stuck", "silent", "Ray ended"]
    silent_s: float = 0.0
    stuck: StuckProcesses | None = None


@dataclass(frozen=True, slots=True)
class NodeWord:
    """What is wrong with a node, as who gives the nodes says."""

    manager: Literal["Slurm", "Ray"]  # who says so
    host: str
    state: str  # in its own word: `drained`; empty: the node does not respond
    why: str = ""  # its own reason; may be empty
    until_s: float = 0.0  # Unix time until which the node is there; 0: not known
