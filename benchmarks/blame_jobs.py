"""The jobs of ``python -m benchmarks blame``: drawn at random from a mix of causes. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["CAUSES", "HOPELESS", "STEPS", "Job", "draw_job"]

STEPS = 30
OUTAGE_STEPS = 120  # what a launch is connected to is looked at after five seconds
# What a job with few nodes fails of, and how often: the mix "small" of the simulations that the rules were chosen by.
CAUSES = {
    "program at start": 28,
    "program at a step": 14,
    "out of memory": 10,
    "program at each restore": 3,
    "program at random": 5,
    "program tied to a rank": 3,
    "memory grows": 4,
    "node always": 6,
    "node at times": 5,
    "link": 1,
    "outage": 9,
    "poisoned save": 2,
    "preemption": 5,
    "one-off": 8,
}
HOPELESS = ("program at start", "program at a step", "out of memory", "program at each restore")
PROGRAMS_WORDS = ("KeyError: labels", "ValueError: too many values to unpack (expected 2)", "AssertionError: shapes")
NODES_WORDS = (
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: unspecified launch failure",
    "OSError: [Errno 5] Input/output error",
    "signal: SIGBUS",
)
# Of these nobody can tell whose they are.
WORDS = (
    *PROGRAMS_WORDS,
    "RuntimeError: CUDA error: unspecified launch failure",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "MemoryError: cannot allocate 3 GiB",
    "RuntimeError: odd",
    "exit: 1",
    "exit: 3",
    "signal: SIGSEGV",
    "signal: SIGABRT",
)
MISLEADING = 0.35  # share of failures whose words do not fit the cause
NAMED = 0.6  # share of outages whose error names what is away


@dataclass(frozen=True, slots=True)
class Job:
    """A job, and the truth about it.

    Attributes
    ----------
    number
        Which of its seed's.
    cause
        Of :data:`CAUSES`.
    nodes, reserve
        How many are in use, and in reserve; without reserve it may go on with fewer.
    devices
        How many ranks a node has; 0: one, without a device.
    checkpointer
        Whether it saves with ``Checkpointer``, or in ``State`` alone.
    peers
        What a rank does that has lost a peer: ``raise``, ``quiet`` or ``wait``.
    words
        What is said of the failure: an error, an exit code or a signal; of an outage: empty if the error names it.
    bad
        The nodes that are bad: none, one, or the two ends of a link.
    rank
        Which one fails; None: all.
    step, age
        At which step of the program, or of the launch.
    chance
        Of a failure at a step.
    away_s
        How long the service is away.
    stays_connected
        Whether the program stays connected to it, or connects anew for each step.
    port
        Where that service is.
    steps
        How many there are.
    """

    number: int
    cause: str
    nodes: int
    reserve: int
    devices: int
    checkpointer: bool
    peers: str
    words: str
    bad: tuple[str, ...]
    rank: int | None
    step: int
    age: int
    chance: float
    away_s: float
    stays_connected: bool
    steps: int
    port: int = 0

    @property
    def can_go_on(self) -> bool:
        """Whether the program gets to its end some time."""
        return self.cause not in HOPELESS

    @property
    def hosts(self) -> tuple[str, ...]:
        """All nodes."""
        return tuple(f"node{n}" for n in range(1, self.nodes + self.reserve + 1))


def draw_job(seed: int, number: int) -> Job:
    """Return one of a seed's jobs."""
    chance = random.Random(f"{seed} {number}")
    [cause] = chance.choices(list(CAUSES), list(CAUSES.values()))
    nodes, reserve, devices = chance.randint(2, 4), chance.randint(0, 1), chance.choice((0, 2))
    hosts = [f"node{n}" for n in range(1, nodes + reserve + 1)]
    rank = chance.randrange(nodes * max(1, devices))
    is_by_all = cause in HOPELESS and chance.random() < 0.5
    return Job(
        number,
        cause,
        nodes,
        reserve,
        devices,
        checkpointer=chance.random() < 0.5 or cause == "poisoned save",
        peers=chance.choice(("raise", "quiet", "wait")),
        words=_words(cause, chance),
        bad=tuple(chance.sample(hosts, {"node always": 1, "node at times": 1, "link": 2}.get(cause, 0))),
        rank=None if is_by_all else rank,
        step=chance.randrange(10, STEPS - 5),
        age=chance.randrange(12, 20) if cause == "memory grows" else chance.randrange(10),
        chance=chance.uniform(0.03, 0.08),
        away_s=chance.uniform(3, 20) if cause == "outage" else 0.0,
        stays_connected=chance.random() < 0.5,
        steps=OUTAGE_STEPS if cause == "outage" else STEPS,
    )


def _words(cause: str, chance: random.Random) -> str:
    fits, of_any = chance.random() > MISLEADING, chance.choice(WORDS)
    if cause == "outage":
        return "" if chance.random() < NAMED else of_any
    if cause in ("out of memory", "memory grows"):
        return "MemoryError: cannot allocate 3 GiB"
    if cause.startswith("program"):
        return chance.choice(PROGRAMS_WORDS) if fits else of_any
    if cause.startswith(("node", "link")):
        return chance.choice(NODES_WORDS) if fits else of_any
    return of_any
