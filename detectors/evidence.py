"""What a verdict is based on: what was found, and what was decided about a restart, as records with plain fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Subject = tuple[str, str | None]
"""A device, a rank (``("node1", "rank 3")``), or a whole node: its host and ``None``."""

Reference = Literal["peers", "own past", "other nodes"]
LinkKind = Literal["node", "leaf", "pair", "link"]
Side = Literal["sends", "receives", "both", ""]
Saved = Literal["commit", "checkpoint", "unknown", "done again"]
ReasonKind = Literal[
    "no reserve",
    "a node less",
    "too little time left",
    "as fast as ever",
    "as slow as peers",
    "lost much together",
    "a phase",
    "others ended",
    "last one in vain",
    "likely to lose more",
    "asked before",
    "made anyway",
    "busier",
    "device is well",
    "not probed since",
    "slow elsewhere",
    "unknown shares",
]


@dataclass(frozen=True, slots=True)
class Slow:
    """A device or node takes longer than what it was compared with."""

    slowdown: float  # reading over reference
    reference: Reference  # what it was compared with, and how many others that are
    n_peers: int = 0
    rounds: int = 1  # rounds since the first slow one
    # By chance that is found less than once in so many jobs; `None` for a single cross-section
    jobs: float | None = None
    since_s: float | None = None  # Unix time of the first slow round and of the last one; `None` if unknown
    now_s: float | None = None
    share: float | None = None  # of its last rounds, if it is slow at times only
    n_devices: int = 0  # of a whole node: its devices, and whether they were judged as one
    are_together: bool = False


@dataclass(frozen=True, slots=True)
class StillSlow:
    """An incident of which there was a verdict goes on; ``at_times``: with well rounds in between."""

    slowdown: float
    at_times: bool = False


@dataclass(frozen=True, slots=True)
class WellAgain:
    """An incident ended by itself."""

    slow_s: float  # for how long the device was slow, and what the job lost by it
    lost_s: float
    count: int  # how many of the device's incidents have ended so, and what they lost together
    sum_s: float
    expected: bool  # whether the next one is expected to do so, too
    instead_of: Subject | None = None  # the device in whose place this one is slow in the same way, as is now known
    is_news: bool = True  # whether it is told of: not if it was as those before it


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A node's NIC, a leaf switch, the path of a pair, or the only link of two nodes is slow."""

    kind: LinkKind  # `link` is the only link of two nodes: one of them is at fault, but nothing tells which
    names: tuple[str, ...]  # the node or leaf; of a pair or link, the sender and the receiver
    # Which direction of a node or leaf is slow; of a pair or link `both`, or empty for that from the first name to the
    # second
    side: Side
    slowdown: float
    n_peers: int
    rounds: int


@dataclass(frozen=True, slots=True)
class WrongResults:
    """A device computes wrong results."""

    what: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No other node reaches a node any more; ``why``: in the words of who tried."""

    why: str


@dataclass(frozen=True, slots=True)
class Accused:
    """A user's analysis accuses hosts."""

    detector: str
    hosts: tuple[str, ...]


Found = Slow | StillSlow | WellAgain | SlowLink | WrongResults | Unreachable | Accused


@dataclass(frozen=True, slots=True)
class Price:
    """What a restart costs, and how that is known."""

    cost_s: float
    source: Literal["given", "assumed", "measured"] = "given"
    # What it is made of if it was measured: the time to the first progress, and the work that would be lost
    start_s: float = 0.0
    unsaved_s: float = 0.0
    saved: Saved = "unknown"  # how that is known: since the last commit or checkpoint, assumed, or part of the start
    is_least: bool = False  # whether less was measured than is assumed at least


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a restart is made or not, with the numbers or the node that its words give."""

    kind: ReasonKind
    numbers: tuple[float, ...] = ()
    host: str = ""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What was decided about a restart."""

    price: Price  # what it costs
    lost_s: float  # what the job has lost, and in what time
    slow_s: float
    # How long until a restart if it goes on like this (`None`: none is made), and the Unix time of the decision
    in_s: float | None
    now_s: float
    why: Reason | None = None  # why it is not a matter of time alone

    @property
    def restart(self) -> bool:
        """Whether it is made now."""
        return self.in_s == 0
