"""What a journal says: one frozen record for each kind of entry, but for those that telemetry shows as well.

Those are in :mod:`laggard.telemetry.course`, and a detector's verdict is an entry as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from laggard.detectors.verdict import Verdict
from laggard.kvstore.control import NodeRecord
from laggard.resilience.decision.events import OutageEnded, ProgramHung, Reason
from laggard.resilience.decision.evidence import Found
from laggard.resilience.decision.failure import Failure
from laggard.telemetry.course import JobBegan, LaunchBegan, LaunchProgressed

LaunchEndCause = Literal["end", "failure", "node lost", "hang", "exclusion", "stop"]


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A launch ended, or a relaunch was decided on; ``wait_s`` is the back-off before the next launch, in seconds."""

    launch: int
    why: Reason
    cause: LaunchEndCause
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A node has joined the job since it began."""

    node: NodeRecord


@dataclass(frozen=True, slots=True)
class FailureFound:
    """The program failed, and what was found on its nodes."""

    failure: Failure
    evidence: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class HangFound:
    """The program hangs; ``stacks`` is the file in the record's folder with the stacks of all ranks, or empty."""

    launch: int
    hang: ProgramHung
    stacks: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the log that the user saw; ``what`` is its first word."""

    what: str
    text: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """laggard itself had to give up."""

    why: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job ended; only lines about its report follow, and progress that was held back."""

    exit_code: int
    excluded: tuple[str, ...] = ()


Record = (
    JobBegan
    | LaunchBegan
    | LaunchEnded
    | LaunchProgressed
    | NodeAdded
    | Verdict
    | FailureFound
    | HangFound
    | OutageEnded
    | Told
    | GaveUp
    | JobEnded
)

KINDS: Mapping[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}
"""The records by the name that each has in a journal."""
