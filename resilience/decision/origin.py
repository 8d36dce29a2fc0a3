"""Which process of a launch failed first. Pure.

All processes of a launch may end within moments of each other, since each notices the end of the others. So an end is
worth the more as the origin the less the end of a peer could bring it about (`Standing`):

1. A **cause** beyond the reach of peers: bad hardware, no memory or no room left. It counts whenever it came.
2. An end **of its own**: death by a signal, an error, or an exit with a code of its own without a word. Who died first
   counts, for the words may be about a peer in a way that no table knows. If most ended alike and others on one node
   did not, those others count, since the ranks of one program that lose a peer end alike. In the same moment a signal
   comes before the rest, since it is noticed late.
3. An **answer**: an exit with 1 without a word, or a signal that asks to end. Programs and launchers do so when a peer
   is gone, however early they are noticed.
4. A process that **left**: it ended with 0 just before the others lost it.
5. A **lost peer**: it says only that a connection is gone. It is the origin only if nobody else has ended.

Equals that ended within the uncertainty of the clocks are told apart by their place in the launch, never by their node
or by who was heard of first: that would speak against some nodes more than against others.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from laggard.resilience.reading.error_output import Complaint, RootCause, complaints_of, root_cause_of
from laggard.system.clock_offset import ClockOffset

# What Python returns for an error that nothing has caught.
EXIT_ERROR = 1
_CRASHES = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV)
# What a shell, or a launcher that is a Python program, returns for a command that crashed or was killed from outside.
SIGNALS_OF_CHILDREN = {code: each for each in _CRASHES for code in (128 + each, 256 - each)}
# What asks a process to end, and what it gets that writes to a peer which is gone; shells add 128.
_ASKS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_ANSWERS = {EXIT_ERROR, *(code for each in _ASKS for code in (-each, 128 + each))}
_PIPE_CODES = {-signal.SIGPIPE, 128 + signal.SIGPIPE}
_ABORTS = {-signal.SIGABRT, 128 + signal.SIGABRT, 256 - signal.SIGABRT}
# By how much an end may be noticed late on a busy node, and one below a launcher, which looks now and then.
NOTICED_WITHIN_S = 0.1
LAUNCHER_WITHIN_S = 2.0
# How long after an error a process may end; one that goes on for longer has survived it.
CLEAN_UP_WITHIN_S = 30.0
# How long before others lost their peer a process may have left.
LEFT_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process of the program."""

    host: str  # its node
    pid: int  # its process id there
    # Its exit code; minus the signal number if it was killed by a signal; None if nobody knows
    exit_code: int | None
    ended_s: float  # Unix time, by the clock of its node
    ran_s: float  # how long it ran, in seconds
    lines: tuple[str, ...] = ()  # the last lines of its standard error, with those of its own children
    # Whether it is a worker of Ray, for a program that runs elsewhere. If that program is killed, so are its workers.
    is_worker: bool = False
    rank: int | None = None  # its rank; None if it has none, or has processes with ranks of their own
    # Whether it runs on the same node in every launch: the primary's devices may be left out, not its processes
    stays: bool = False
    # For how long it has shown no sign of life without ending, if it has raised an error and has not ended
    lingers_s: float | None = None
    place: int = 0  # its number among the processes of the launch
    device: str = ""  # the GPU or virtual device that it has to itself; empty if there is none
    raised_s: float = 0.0  # when it began to write its last traceback, by the same clock; 0: it wrote none
    uncertainty_s: float = 0.0  # by how much the clock may be wrong


class Standing(IntEnum):
    """What the end of a process is worth as the origin of a failure: the less, the more."""

    CAUSE = 0
    SIGNAL = 1
    ERROR = 2
    CODE = 3
    WORKER = 4
    ANSWER = 5
    LEFT = 6
    LOST_PEER = 7

    @property
    def level(self) -> int:
        """On one level, who died first counts."""
        return self.SIGNAL if self in (self.SIGNAL, self.ERROR, self.CODE) else self


@dataclass(frozen=True, slots=True)
class Witness:
    """The end of a process, what it has to say about it, and what that is worth."""

    end: ProcessEnd
    complaint: Complaint
    root: RootCause | None
    standing: Standing

    @classmethod
    def of(cls, end: ProcessEnd) -> Witness:
        """Return what an end is worth."""
        if end.exit_code == 0:
            return cls(end, Complaint(None, "", None), None, Standing.LEFT)
        root = root_cause_of(end.lines)
        complaint = _complaint_of(end, root)
        return cls(end, complaint, root, _standing(end, complaint, root))

    @property
    def rank(self) -> int | None:
        """The rank that it is about."""
        return self.end.rank if self.complaint.rank is None else self.complaint.rank

    @property
    def exit_code(self) -> int | None:
        """The exit code of that rank."""
        return self.root.exit_code if self.root and self.root.rank == self.complaint.rank else self.end.exit_code

    @property
    def lost_its_peer(self) -> bool:
        """Whether it says only that a connection is gone."""
        return self.standing is Standing.LOST_PEER

    @property
    def way(self) -> tuple[int | None, str]:
        """In which way it ended: ranks that run the same program and lose the same peer end alike."""
        return self.exit_code, self.complaint.place

    @property
    def died_s(self) -> float:
        """When it died, as far as was noticed; an error counts from its first word, since cleaning up takes time."""
        raised_s, ended_s = self.end.raised_s, self.end.ended_s
        cleaned_up = self.standing is Standing.ERROR and 0 <= ended_s - raised_s <= CLEAN_UP_WITHIN_S
        return raised_s if cleaned_up else ended_s

    @property
    def earliest_s(self) -> float:
        """When it may have died at the earliest."""
        below_launcher = self.root is not None or self.end.exit_code in SIGNALS_OF_CHILDREN
        return self.died_s - (LAUNCHER_WITHIN_S if below_launcher else NOTICED_WITHIN_S) - self.end.uncertainty_s


def by_one_clock(ends: Sequence[ProcessEnd], clocks: Mapping[str, ClockOffset]) -> list[ProcessEnd]:
    """Return the ends with their times by the primary's clock, given how far the clock of each host is from it."""
    # The same uncertainty for all: otherwise the nodes that are nearer would be first more often.
    uncertainty_s = 2 * max((clock.uncertainty_s for clock in clocks.values()), default=0.0)
    corrections_s = {host: clock.correction_s for host, clock in clocks.items()}
    return [
        replace(
            end,
            ended_s=end.ended_s - corrections_s.get(end.host, 0.0),
            raised_s=end.raised_s and end.raised_s - corrections_s.get(end.host, 0.0),
            uncertainty_s=uncertainty_s,
        )
        for end in ends
    ]


def able_witnesses(ends: Sequence[ProcessEnd]) -> list[Witness]:
    """Return what the ends are worth, without those that ended with 0 and are not missed."""
    found = [Witness.of(end) for end in ends]
    bad = [each for each in found if each.standing is not Standing.LEFT]
    if not all(each.lost_its_peer for each in bad):
        return bad
    missed_s = min((each.end.ended_s for each in bad), default=0.0)
    return [each for each in found if each in bad or 0 <= missed_s - each.earliest_s <= LEFT_WITHIN_S]


def claims(found: Sequence[Witness]) -> list[Witness]:
    """Return the processes with the best claim to have failed first, as far as the times do not count."""
    level = min(each.standing.level for each in found)
    found = [each for each in found if each.standing.level == level]
    if level != Standing.SIGNAL:
        return found
    (most, number), *_ = Counter(each.way for each in found).most_common(1)
    odd = [each for each in found if each.way != most]
    is_answer = not by_signal(most[0]) or most[0] in _ABORTS  # libraries abort when a peer is gone
    stands_out = is_answer and 1 < number > len(found) / 2 and len({each.end.host for each in odd}) == 1
    return odd if stands_out else found


def origin_among(able: Sequence[Witness]) -> Witness:
    """Return the one of those with the best claim that failed first."""
    first_s = min(each.died_s for each in able)
    killed = [each for each in able if each.standing is Standing.SIGNAL and each.earliest_s <= first_s]
    able = killed or able
    first_s = min(each.died_s for each in able)
    ties = [each for each in able if each.died_s - each.end.uncertainty_s <= first_s]
    return min(ties, key=lambda each: (each.end.place if each.end.rank is None else each.end.rank, each.died_s))


def is_like(origin: Witness, other: Witness) -> bool:
    """Return whether another process has as much of a cause of its own as the one that was first."""
    if origin.standing in (Standing.CAUSE, Standing.ERROR, Standing.LEFT, Standing.LOST_PEER):
        return other.standing is origin.standing
    return other.standing is origin.standing and other.exit_code == origin.exit_code


def _standing(end: ProcessEnd, complaint: Complaint, root: RootCause | None) -> Standing:
    kind = complaint.signature.kind if complaint.says_why and complaint.signature else "unknown"
    if complaint.is_cascade or end.exit_code in _PIPE_CODES:
        return Standing.LOST_PEER
    if kind in ("hardware", "capacity"):
        return Standing.CAUSE
    if end.is_worker:
        return Standing.WORKER
    codes = {end.exit_code, root.exit_code if root else end.exit_code}
    if any(map(by_signal, codes)) and not codes & _ANSWERS - {EXIT_ERROR}:
        return Standing.SIGNAL
    if complaint.says_why or complaint.place:
        return Standing.ERROR
    return Standing.ANSWER if codes <= _ANSWERS else Standing.CODE


def by_signal(exit_code: int | None) -> bool:
    """Return whether a process, or the child of a shell, was killed by a signal."""
    return exit_code is not None and (exit_code < 0 or exit_code in SIGNALS_OF_CHILDREN)


def _complaint_of(end: ProcessEnd, root: RootCause | None) -> Complaint:
    complaint = _complaint_of_first(end, root)
    exit_code = root.exit_code if root and root.rank == complaint.rank else end.exit_code
    if _was_survived(complaint, exit_code):
        return Complaint(complaint.rank, "", None, last_line=complaint.last_line)
    return complaint


def _was_survived(complaint: Complaint, exit_code: int | None) -> bool:
    """Return whether a process had gone on after what it complained of, and was then killed or crashed."""
    if complaint.is_cascade:  # without a traceback it is some line of a log; but libraries abort when a peer is gone
        return not complaint.place and by_signal(exit_code) and exit_code not in _ABORTS
    if not complaint.went_on:
        return False
    # A lack of memory and bad hardware may well be why it was killed.
    kind = complaint.signature.kind if complaint.signature else "unknown"
    return exit_code == -signal.SIGKILL and kind not in ("capacity", "hardware")


def _complaint_of_first(end: ProcessEnd, root: RootCause | None) -> Complaint:
    complaints = complaints_of(end.lines)
    if root is None:
        return next((each for each in complaints if not _is_of_another(end, each)), Complaint(None, "", None))
    own = next((each for each in complaints if each.rank == root.rank), None)
    if own is None or own.is_cascade:  # the rank that was seen first to end may be the first to notice another's end
        own = next((each for each in complaints if each.rank is not None and not each.is_cascade), own)
    if own is not None:
        return own
    unmarked = next((each for each in complaints if each.rank is None), None)
    if unmarked is None or not _may_be_of(root, unmarked):
        return Complaint(root.rank, "", None)
    return replace(unmarked, rank=root.rank)


def _is_of_another(end: ProcessEnd, complaint: Complaint) -> bool:
    """Return whether a rank that a process has started noticed another's end, and the process ended for another reason.

    PyTorch marks what ends a rank, and Python then ends it with 1: any other code is that of another rank.
    """
    started_it = end.rank is None and complaint.rank is not None
    return started_it and complaint.is_cascade and (end.exit_code or 0) > EXIT_ERROR


def _may_be_of(root: RootCause, unmarked: Complaint) -> bool:
    """Return whether lines without a rank may be those of the rank that torchrun names."""
    # A traceback of a peer that was lost is, if Python has ended the rank: until its process group is there, PyTorch
    # does not mark its lines. What libraries log of lost peers may be another rank's.
    if unmarked.is_cascade:
        return bool(unmarked.place) and root.exit_code == EXIT_ERROR
    return unmarked.quote != ""
