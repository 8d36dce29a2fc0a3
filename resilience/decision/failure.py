"""Why a launch failed: which of its processes was first, in which words, and what to do about it. Pure.

All processes of a launch may end within seconds of each other, since each notices the end of the others. So time alone
does not say which was first: whoever wrote why it ended comes before whoever was killed by a signal that we did not
send, and last come those who only noticed another's end. Among equals the earliest counts, by the primary's clock.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from laggard.resilience.decision.error_output import (
    Complaint,
    RootCause,
    complaints_of,
    root_cause_of,
    without_numbers,
)
from laggard.resilience.decision.signatures import KILLED, Kind, Response

# What argparse, click and the shell return for arguments that cannot be used.
EXIT_USAGE = 2
# What Python returns for an error that nothing has caught.
EXIT_ERROR = 1
# What a shell returns for a command that crashed or was killed from outside.
SIGNALS_OF_SHELLS = {
    128 + each: each
    for each in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV)
}
EXIT_KILLED = 128 + signal.SIGKILL

Trust = Literal[0, 1, 2, 3]
"""How much a process says about why: 0 says why, 1 was killed, 2 says nothing, 3 only noticed another's end."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process of the program that did not end well."""

    host: str  # its node
    pid: int  # its process id there
    exit_code: int  # its exit code; minus the signal number if it was killed by a signal
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


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a launch failed."""

    host: str  # the node where it began
    rank: int | None  # the rank that was first; None if unknown
    pid: int  # its process id, or that of what started it
    exit_code: int  # its exit code; minus the signal number if it was killed by a signal
    job_exit_code: int  # what the job would end with
    ended_s: float  # when its process ended (Unix time), and after how many seconds
    ran_s: float
    quote: str  # the line that says why; empty if none does
    cause: str  # what that is, in a few words; empty if unknown
    kind: Kind  # what kind of trouble it is
    response: Response  # what to do about it
    fingerprint: str  # the type and the place of the error: two failures with the same fingerprint are the same
    is_worker: bool = False  # whether that process is a worker of Ray
    stays: bool = False  # whether that process runs on its node in every launch, whichever devices are used
    # For how long that process has shown no sign of life, if it has raised an error and has not ended
    lingers_s: float | None = None
    last_line: str = ""  # the last line that it wrote, if none says why; empty if it wrote none

    def for_want_of_memory(self) -> Failure:
        """Return the same failure of a process without a word, on a node where the kernel killed for want of memory."""
        if self.cause not in ("", KILLED) or self.exit_code not in (-signal.SIGKILL, EXIT_KILLED):
            return self
        return replace(self, kind="capacity", cause="no memory left", response="once")


def by_one_clock(ends: Sequence[ProcessEnd], corrections_s: Mapping[str, float]) -> list[ProcessEnd]:
    """Return the ends with their times by the primary's clock, given what to subtract from the times of each host."""
    return [replace(end, ended_s=end.ended_s - corrections_s.get(end.host, 0.0)) for end in ends]


def explain(ends: Sequence[ProcessEnd], hosts: Mapping[str, str]) -> Failure:
    """Return why a launch failed."""
    witnesses = [(end, _complaint_of(end)) for end in ends]
    end, complaint = min(witnesses, key=lambda each: _order(*each))
    root = root_cause_of(end.lines)
    exit_code = root.exit_code if root and root.rank == complaint.rank else end.exit_code
    signature = complaint.signature
    kind, cause = (signature.kind, signature.name) if signature else ("unknown", "")
    host = hosts.get(complaint.address or "", end.host)
    rank = end.rank if complaint.rank is None else complaint.rank
    return Failure(
        host=host,
        rank=rank,
        pid=root.pid if root and root.rank == complaint.rank else end.pid,
        exit_code=exit_code,
        job_exit_code=end.exit_code if end.exit_code > 0 else 128 - end.exit_code,
        ended_s=end.ended_s,
        ran_s=end.ran_s,
        quote=complaint.quote,
        cause=cause,
        kind=kind,
        response=_response(end, exit_code, complaint),
        fingerprint=_fingerprint(exit_code, complaint),
        is_worker=end.is_worker,
        stays=end.stays and rank is None and complaint.address is None,
        lingers_s=end.lingers_s,
        last_line="" if complaint.quote else complaint.last_line,
    )


def raised_and_stays(end: ProcessEnd, ending: Collection[tuple[str, int | None]]) -> bool:
    """Return whether a process of which a rank is ending, and does not end, is doing so because of an error of its own.

    Parameters
    ----------
    end
        The process, and what it has written so far.
    ending
        Node and rank of each process whose program is over, although it is still there.
    """
    complaint = _complaint_of(end)
    rank = end.rank if complaint.rank is None else complaint.rank
    return bool(complaint.place) and not complaint.is_cascade and (end.host, rank) in ending


def has_own_cause(end: ProcessEnd) -> bool:
    """Return whether no other process of the launch, whose end is not known yet, can be why this one ended."""
    # It says why, or was killed by SIGKILL, which only somebody else sends: the kernel, an operator or a scheduler.
    # Crashes (SIGSEGV, SIGABRT) do follow from another's end: NCCL's watchdog aborts, and libraries crash as they
    # close.
    trust = _trust(end, _complaint_of(end))
    return trust == 0 or (trust == 1 and end.exit_code == -signal.SIGKILL)


def only_noticed_another(end: ProcessEnd) -> bool:
    """Return whether a process only noticed the end of another one."""
    return _trust(end, _complaint_of(end)) == 3


def _complaint_of(end: ProcessEnd) -> Complaint:
    root = root_cause_of(end.lines)
    complaint = _complaint_of_first(end, root)
    exit_code = root.exit_code if root and root.rank == complaint.rank else end.exit_code
    if exit_code == -signal.SIGKILL and _was_survived(complaint):
        return Complaint(complaint.rank, "", None, last_line=complaint.last_line)
    return complaint


def _was_survived(complaint: Complaint) -> bool:
    """Return whether a process that somebody else killed had gone on after what it complained of."""
    # A lack of memory and bad hardware may well be why it was killed.
    kind = complaint.signature.kind if complaint.signature else "unknown"
    return complaint.went_on and not complaint.is_cascade and kind not in ("capacity", "hardware")


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
    return started_it and complaint.is_cascade and end.exit_code > EXIT_ERROR


def _may_be_of(root: RootCause, unmarked: Complaint) -> bool:
    """Return whether lines without a rank may be those of the rank that torchrun names."""
    # A traceback of a peer that was lost is, if Python has ended the rank: until its process group is there, PyTorch
    # does not mark its lines. What libraries log of lost peers may be another rank's.
    if unmarked.is_cascade:
        return bool(unmarked.place) and root.exit_code == EXIT_ERROR
    return unmarked.quote != ""


def _explains(complaint: Complaint) -> bool:
    says_why = complaint.signature is not None and complaint.signature.says != "how"
    return not complaint.is_cascade and (says_why or bool(complaint.place))


def _trust(end: ProcessEnd, complaint: Complaint) -> Trust:
    if complaint.is_cascade:
        return 3
    if _explains(complaint):
        return 0
    root = root_cause_of(end.lines)
    was_killed = _by_signal(end.exit_code) or (root is not None and _by_signal(root.exit_code))
    return 1 if was_killed else 2


def _order(end: ProcessEnd, complaint: Complaint) -> tuple[Trust, bool, float]:
    """Return by what the process that failed first is found: the least of these."""
    trust = _trust(end, complaint)
    # A program whose worker was killed gets an exception: if it was killed too, it was the first, whoever noticed when.
    return trust, end.is_worker and trust == 1, end.ended_s


def _response(end: ProcessEnd, exit_code: int, complaint: Complaint) -> Response:
    if complaint.signature is not None and complaint.signature.kind != "program":
        return complaint.signature.response
    if EXIT_USAGE in (exit_code, end.exit_code):
        return "end"
    if complaint.signature is not None:
        return complaint.signature.response
    # Killed by a signal, without a word: a watchdog, the kernel, or a bug in compiled code.
    return "strike" if _by_signal(exit_code) else "once"


def _fingerprint(exit_code: int, complaint: Complaint) -> str:
    what = complaint.signature.name if complaint.signature else ""
    place = complaint.place or (without_numbers(complaint.quote) if what else "")
    return " | ".join(filter(None, [f"{exit_code}", what, place]))


def _by_signal(exit_code: int) -> bool:
    return exit_code < 0 or exit_code in SIGNALS_OF_SHELLS
