"""What the policy is asked, and what it answers: settings, the job's status, events and decisions. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from laggard.kvstore.checkpoints.complete import Newest
from laggard.resilience.decision.evidence import Finding, Found
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.hang import Silent
from laggard.resilience.decision.ledger import Incident, NodeEvidence
from laggard.resilience.decision.placement import SCHEDULERS, Placement
from laggard.resilience.decision.reasons import Change, Fact, NodeWord, NoProgress, Stopped, TooFew, WhyLost
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.row import UNKNOWN_COURSE, Course, Setback
from laggard.resilience.decision.stacks import Standstill
from laggard.resilience.reading.targets import Unanswered

OnFailure = Literal["relaunch", "end"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for."""

    nodes: int  # nodes in use
    resilient: bool = False  # whether to relaunch at all
    exhaust_resources: bool = False  # whether to continue with fewer nodes, down to the primary alone
    quarantine_s: float = 86400.0  # how long a node stays excluded the first time, in seconds
    max_restarts: int | None = None  # most relaunches in total; `None`: no limit
    max_restarts_per_hour: int = 60  # most relaunches within any hour
    on_failure: OnFailure = "relaunch"  # what to do when the program fails, with `resilient`
    # The shortest wait before the second relaunch in a row after failures without progress, or after an outage
    backoff_s: float = 10.0
    # What a wrong end costs, in seconds: without progress for so long, the job ends
    give_up_after_s: float = 7200.0
    # How long to wait for lost nodes to return, in seconds, before the job ends for want of nodes
    wait_for_nodes_s: float = 300.0
    # Whether ranks are placed on nodes by us, and may change places
    places_ranks: bool = False
    # The devices of each node, if each has a rank of its own
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    leaves: Mapping[str, str] = field(default_factory=dict)  # the leaf switch of each node, as far as it is known


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where the job stands: everything that the policy remembers from one event to the next."""

    roster: Roster  # which node does what
    launched_s: float  # Unix time at which the latest launch was decided on
    relaunched_s: tuple[float, ...] = ()  # Unix time of each relaunch so far
    # Unix time of the first relaunch since the last progress; None: there was none
    stalled_since_s: float | None = None
    row: tuple[Setback, ...] = ()  # the failures and hangs since the last progress, newest last
    went_back: tuple[Newest, ...] = ()  # the checkpoints that were set aside since the last progress
    survived: frozenset[str] = frozenset()  # the places of failures after which the job made progress
    ledger: tuple[Incident, ...] = ()  # what began on which node, and what had been drawn before
    placement: Placement = SCHEDULERS  # which node has which ranks
    # Unix time since which the job has waited for lost nodes to return, without a launch; None: it does not
    waits_since_s: float | None = None
    outage: Unanswered | None = None  # what the job waits for, without a launch; None: nothing

    @property
    def placed(self) -> Roster:
        """The roster with the active nodes in the order of their ranks."""
        return replace(self.roster, active=self.placement.of(self.roster.active))


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """The program ended with exit code 0."""


@dataclass(frozen=True, slots=True)
class ProgramFailed:
    """The program exited with an error, or was killed by a signal that laggard did not send."""

    failure: Failure
    evidence: tuple[Found, ...] = ()  # what was found on its nodes when they were checked
    course: Course = UNKNOWN_COURSE  # how far the launch had come
    unanswered: Unanswered | None = None  # what it names that does not answer


@dataclass(frozen=True, slots=True)
class RanksReplaced:
    """Ranks failed and were replaced, and the others kept their processes."""

    failure: Failure
    evidence: tuple[Found, ...] = ()  # what was found on the nodes when they were checked
    course: Course = UNKNOWN_COURSE


@dataclass(frozen=True, slots=True)
class ProgramHung:
    """The program hangs: it has shown no sign of life for too long."""

    silent_s: float  # for how many seconds
    silent: Silent | None = None  # who was silent; None: the program gave no sign of its own
    stacks: Standstill | None = None  # where its ranks stand; None if that is not known
    suspect: str = ""  # the node of the rank that the others wait for; empty if that is not known
    course: Course = UNKNOWN_COURSE  # how far the launch had come


@dataclass(frozen=True, slots=True)
class NodesAccused:
    """A detector, or the program itself, asks for a relaunch without some nodes (or on the same ones)."""

    hosts: frozenset[str]
    recovers: bool = False  # whether the program restarts its own workers without them


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node does not answer, or its processes have ended."""

    host: str
    why: WhyLost | None = None
    word: NodeWord | None = None  # what the manager of nodes says of it
    recovers: bool = False  # whether the program restarts its own workers without it


@dataclass(frozen=True, slots=True)
class NodesDrained:
    """The manager of nodes in reserve says that they are down or drained."""

    words: tuple[NodeWord, ...]


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """The manager of a node in use says that it is down or drained, or takes it away."""

    word: NodeWord


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A node is well again or has served its quarantine, and its devices were probed."""

    host: str
    faults: tuple[Finding, ...] = ()  # what was found when it was examined


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A new node has joined the cluster that the job was given."""

    host: str
    has_devices: bool


@dataclass(frozen=True, slots=True)
class NodesMissing:
    """The lost nodes that the job waits for have not returned within `--wait-for-nodes`."""


@dataclass(frozen=True, slots=True)
class OutageEnded:
    """What the job waits for answers again."""

    outage: Unanswered
    lasted_s: float


@dataclass(frozen=True, slots=True)
class OutageTooLong:
    """What the job waits for has not answered within `--give-up-after`."""

    outage: Unanswered
    waited_s: float


Event = (
    ProgramEnded
    | ProgramFailed
    | RanksReplaced
    | ProgramHung
    | NodesAccused
    | NodeLost
    | NodesDrained
    | NodeDrained
    | NodeReturned
    | NodeJoined
    | NodesMissing
    | OutageEnded
    | OutageTooLong
)
ReasonPart = Fact | Change | Failure | Found | NodeEvidence | Stopped | Unanswered | Newest | Event
Reason = tuple[ReasonPart, ...]
"""Why something was decided: what happened, and what the decision rests on; the words are made last."""

EXIT_TOO_FEW_NODES = 69
EXIT_NO_PROGRESS = 93


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Begin the next launch."""

    status: JobStatus  # the job's status from now on
    reason: Reason  # why, and on which nodes
    new_cluster: bool = False  # whether a new Ray cluster is needed, since the old one has lost its head
    wait_s: float = 0.0  # how long to wait before it, in seconds
    goes_back: tuple[Newest, ...] = ()  # the checkpoints that are set aside


@dataclass(frozen=True, slots=True)
class End:
    """End the job; ``status``: the new status of the job, if the event changed it."""

    reason: Reason
    status: JobStatus | None = field(default=None, compare=False)

    @property
    def exit_code(self) -> int:
        """The job's exit code: that of the first fact that ends a job."""
        return next(code for fact in self.reason if (code := _exit_code(fact)) is not None)


def _exit_code(fact: object) -> int | None:
    match fact:
        case ProgramEnded():
            return 0
        case Failure():
            return fact.job_exit_code
        case OutageTooLong():
            return EXIT_NO_PROGRESS
        case NodeLost():
            return EXIT_TOO_FEW_NODES
        case Fact() if fact.kind in get_args(TooFew):
            return EXIT_TOO_FEW_NODES
        case Fact() if fact.kind in get_args(NoProgress):
            return EXIT_NO_PROGRESS
    return None


@dataclass(frozen=True, slots=True)
class Report:
    """Let the program go on, and tell the user why."""

    status: JobStatus
    reason: Reason


Decision = Relaunch | End | Report
