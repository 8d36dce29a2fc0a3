"""Why a launch failed: which of its processes was first, in which words, and who else has ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.decision.origin import (
    EXIT_ERROR,
    SIGNALS_OF_CHILDREN,
    ProcessEnd,
    Standing,
    Witness,
    able_witnesses,
    claims,
    is_like,
    origin_among,
)
from laggard.resilience.reading.error_output import Complaint, without_numbers
from laggard.resilience.reading.signatures import KILLED, WRONG_ARGUMENTS, Kind

# What argparse, click and the shell return for arguments that cannot be used.
EXIT_USAGE = 2
# A program that does not understand its arguments ends at once; one that loads much first takes some seconds.
USAGE_WITHIN_S = 10.0
# Who asks a process to end from outside; shells add 128.
_ASKED = {code for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) for code in (-each, 128 + each)}
# Of the other processes that have ended, so many are kept; thousands of ranks may end together.
MAX_OTHERS = 16


@dataclass(frozen=True, slots=True)
class OtherEnd:
    """Another process that has ended."""

    host: str  # its node
    rank: int | None  # its rank; None if unknown
    exit_code: int | None  # its exit code; minus the signal number if it was killed by a signal; None if unknown
    after_s: float  # for how long it outlived the one that was first, in seconds; negative if it ended before
    lost_peer: bool  # whether it only says that a connection is gone


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a launch failed."""

    host: str  # the node where it began; if it did on several, that of the lowest rank
    rank: int | None  # the rank that was first; None if unknown
    pid: int  # its process id, or that of what started it
    exit_code: int | None  # its exit code; minus the signal number if it was killed by a signal; None if unknown
    job_exit_code: int  # what the job would end with
    ended_s: float  # when its process ended (Unix time), and after how many seconds
    ran_s: float
    quote: str  # the line that says why; empty if none does
    cause: str  # what that is, in a few words; empty if unknown
    kind: Kind  # what kind of trouble it is
    fingerprint: str  # the type and the place of the error: two failures with the same fingerprint are the same
    is_proof: bool = False  # whether hardly anything but a bad node is a reason for its words
    is_shared: bool = False  # whether its words are about what ranks gave each other: they speak against no node
    is_usage: bool = False  # whether the program was started with arguments that it does not understand
    is_worker: bool = False  # whether that process is a worker of Ray
    stays: bool = False  # whether that process runs on its node in every launch, whichever devices are used
    # For how long that process has shown no sign of life, if it has raised an error and has not ended
    lingers_s: float | None = None
    last_line: str = ""  # the last line that it wrote, if none says why; empty if it wrote none
    # Where it began: several nodes if processes on them had a cause of their own, or if all only lost each other
    hosts: tuple[str, ...] = ()
    device: str = ""  # the GPU or virtual device of the rank; empty if it has none to itself
    lost_peer: bool = False  # whether even the first only says that a connection is gone
    others: tuple[OtherEnd, ...] = ()  # who else has ended, those that only lost a peer last
    n_more: int = 0  # how many more have ended

    @property
    def several(self) -> bool:
        """Whether it began on several nodes, so that it speaks against none of them."""
        return len(self.hosts) > 1

    @property
    def was_killed(self) -> bool:
        """Whether somebody may have killed the process from outside."""
        return self._was_sigkilled or self.exit_code in {None, *_ASKED}

    @property
    def _was_sigkilled(self) -> bool:
        return self.exit_code == -signal.SIGKILL or SIGNALS_OF_CHILDREN.get(self.exit_code or 0) == signal.SIGKILL

    def for_want_of_memory(self) -> Failure:
        """Return the same failure of a process without a word, on a node where the kernel killed for want of memory."""
        if self.cause not in ("", KILLED) or not (self._was_sigkilled or self.exit_code is None):
            return self
        return replace(self, kind="capacity", cause="no memory left")


def explain(ends: Sequence[ProcessEnd], hosts: Mapping[str, str]) -> Failure:
    """Return why a launch failed.

    Parameters
    ----------
    ends
        The processes that have ended, with their times by one clock.
    hosts
        The host name of each address that an error may name.
    """
    found = able_witnesses(ends)
    able = claims(found)
    origin = origin_among(able)
    end, complaint, root = origin.end, origin.complaint, origin.root
    signature = complaint.signature
    kind, cause = (signature.kind, signature.name) if signature else ("unknown", "")
    others = _others(origin, found, hosts)
    return Failure(
        host=_host(origin, hosts),
        rank=origin.rank,
        pid=root.pid if root and root.rank == complaint.rank else end.pid,
        exit_code=origin.exit_code,
        job_exit_code=_job_exit_code(origin, found),
        ended_s=end.ended_s,
        ran_s=end.ran_s,
        quote=complaint.quote,
        cause=cause,
        kind=kind,
        fingerprint=_fingerprint(origin.exit_code, complaint),
        is_proof=signature is not None and signature.is_proof,
        is_shared=signature is not None and signature.is_shared,
        is_usage=_is_usage(ends, complaint),
        is_worker=end.is_worker,
        stays=end.stays and origin.rank is None and complaint.address is None,
        lingers_s=end.lingers_s,
        last_line="" if complaint.quote else complaint.last_line,
        hosts=tuple(dict.fromkeys(_host(each, hosts) for each in (origin, *able) if is_like(origin, each))),
        device=end.device,
        lost_peer=origin.lost_its_peer,
        others=tuple(others[:MAX_OTHERS]),
        n_more=len(others[MAX_OTHERS:]),
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
    found = Witness.of(end)
    return bool(found.complaint.place) and not found.complaint.is_cascade and (end.host, found.rank) in ending


def only_lost_its_peer(end: ProcessEnd) -> bool:
    """Return whether a process says only that a connection to another one is gone."""
    return Witness.of(end).lost_its_peer


def _host(of: Witness, hosts: Mapping[str, str]) -> str:
    return hosts.get(of.complaint.address or "", of.end.host)


def _others(origin: Witness, found: Sequence[Witness], hosts: Mapping[str, str]) -> list[OtherEnd]:
    others = [
        OtherEnd(
            _host(each, hosts), each.rank, each.exit_code, each.end.ended_s - origin.end.ended_s, each.lost_its_peer
        )
        for each in found
        # That a program which runs once ends of the loss of its worker goes without saying.
        if each is not origin and each.standing is not Standing.LEFT and not (each.end.stays and each.lost_its_peer)
    ]
    return sorted(others, key=lambda each: (each.lost_peer, each.after_s))


def _job_exit_code(origin: Witness, found: Sequence[Witness]) -> int:
    codes = [each.end.exit_code for each in (origin, *found) if not each.end.is_worker]
    code = next((code for code in codes if code), EXIT_ERROR)
    return code if code > 0 else 128 - code


def _is_usage(ends: Sequence[ProcessEnd], complaint: Complaint) -> bool:
    """Return whether a program was started with arguments that it does not understand: it says so, or all ranks do."""
    if complaint.signature is not None:
        return complaint.signature.name == WRONG_ARGUMENTS
    return not complaint.place and all(end.exit_code == EXIT_USAGE and end.ran_s <= USAGE_WITHIN_S for end in ends)


def _fingerprint(exit_code: int | None, complaint: Complaint) -> str:
    what = complaint.signature.name if complaint.signature else ""
    place = complaint.place or (without_numbers(complaint.quote) if what else "")
    return " | ".join(filter(None, [f"{exit_code}", what, place]))
