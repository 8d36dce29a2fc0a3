"""The course of a job, rebuilt from its journal: pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeVar

from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Verdict
from laggard.resilience.decision.events import OutageEnded, ProgramHung, Reason
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.ledger import NodeEvidence
from laggard.resilience.reading.signatures import Kind
from laggard.resilience.record.entries import (
    FailureFound,
    GaveUp,
    HangFound,
    JobEnded,
    LaunchEndCause,
    LaunchEnded,
    NodeAdded,
    Told,
)
from laggard.resilience.record.journal import Entry, event_of
from laggard.telemetry.course import JobBegan, LaunchBegan, LaunchProgressed, Progress
from laggard.telemetry.events import Event

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class RecordedVerdict:
    """A verdict, and when it came."""

    time_s: float
    of: Verdict

    @property
    def target(self) -> str:
        """Name of the device or node that the verdict is against."""
        return self.of.host if self.of.gpu is None else f"{self.of.host} gpu {self.of.gpu}"

    @property
    def since_s(self) -> float:
        """Since when the device or node has been so, as far as it is known."""
        found = self.of.evidence.found
        return found.since_s if isinstance(found, Slow) and found.since_s is not None else self.time_s

    @property
    def is_over(self) -> bool:
        """Whether it says that the device or node is no longer slow."""
        return self.of.severity == "well again"

    def is_about(self, host: str, gpu: str | None) -> bool:
        """Return whether it is against a device, or against the device's whole node."""
        return host == self.of.host and self.of.gpu in {None, gpu}


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failure or a hang of the program."""

    time_s: float  # Unix time at which it was known
    of: Failure | ProgramHung  # what happened
    stacks: str = ""

    @property
    def host(self) -> str:
        """Where it began; empty if unknown."""
        return self.of.host if isinstance(self.of, Failure) else self.of.suspect

    @property
    def kind(self) -> Kind | Literal["hang"]:
        """What kind of trouble it is."""
        return self.of.kind if isinstance(self.of, Failure) else "hang"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the program."""

    number: int  # number of the launch
    nodes: tuple[str, ...]
    reserve: tuple[str, ...]
    began_s: float  # Unix times: when its program started, and when it ended or a relaunch was decided; NaN if unknown
    ended_s: float = math.nan
    why: Reason = ()  # why it ended
    # Length in seconds of each phase of the relaunch that led to this launch; empty for the first launch
    gap_s: Mapping[str, float] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()  # hosts that the next launch does without
    cause: LaunchEndCause | Literal[""] = ""  # what kind of event ended it, as in the journal; empty if unknown
    wait_s: float = 0.0  # the back-off or wait before the next launch, in seconds
    progress: tuple[Progress, ...] = ()  # how far it had come, in chronological order; empty if unknown
    # The node that holds State and the controller; if it is not one of `nodes`, its devices are not in use
    primary: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the job's log, as the user saw it; ``what`` is its first word."""

    time_s: float
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The course of a job."""

    name: str
    command: str  # its command line
    machine: str
    began_s: float  # Unix times; `ended_s` of a job without an end is the time of its last event
    ended_s: float
    exit_code: int | None  # none if the job is still running, or was killed before it could record its end
    devices: Mapping[str, tuple[str, ...]]  # device names by host
    launches: tuple[Launch, ...]  # in chronological order
    verdicts: tuple[RecordedVerdict, ...]
    log: tuple[LogLine, ...]
    events: tuple[Event, ...] = ()  # what telemetry shows of it
    failures: tuple[RecordedFailure, ...] = ()
    error: str = ""  # why laggard itself had to give up; empty if it did not

    @property
    def hosts(self) -> list[str]:
        """All hosts, those of the first launch first."""
        used = dict.fromkeys(
            host
            for launch in self.launches
            for host in (*filter(None, [launch.primary]), *launch.nodes, *launch.reserve)
        )
        return list(dict.fromkeys([*used, *self.devices]))

    @property
    def evidence(self) -> dict[str, NodeEvidence]:
        """What the ledger has against nodes, as it was told last."""
        parts = (part for launch in self.launches for part in launch.why)
        return {part.host: part for part in parts if isinstance(part, NodeEvidence)}

    def launch_at(self, time_s: float) -> Launch | None:
        """Return the launch that was current at a time."""
        before = [launch for launch in self.launches if launch.began_s <= time_s]
        return before[-1] if before else None

    def failure_of(self, launch: Launch) -> RecordedFailure | None:
        """Return the failure that a launch ended with, if it failed."""
        found = [failure for failure in self.failures if self.launch_at(failure.time_s) == launch]
        return found[-1] if found else None

    def verdict_that_ended(self, launch: Launch) -> RecordedVerdict | None:
        """Return the restart verdict that ended a launch, if one did."""
        for verdict in reversed(self.verdicts):
            matches = verdict.of.action == "restart" and verdict.of.host in launch.excluded
            if matches and self.launch_at(verdict.time_s) == launch:
                return verdict
        return None


def timeline_of_entries(entries: Sequence[Entry]) -> Timeline:
    """Build a timeline from a journal."""
    job = entries[0].record
    if not isinstance(job, JobBegan):
        raise ValueError("its first entry is not the job's beginning")  # noqa: TRY004 - the file is wrong, not the caller
    ends = [(time_s, end.exit_code) for time_s, end in _of(JobEnded, entries)]
    given_up = _of(GaveUp, entries)
    added = {added.node.hostname: added.node.devices for _, added in _of(NodeAdded, entries)}
    hangs = (RecordedFailure(time_s, found.hang, found.stacks) for time_s, found in _of(HangFound, entries))
    failures = (RecordedFailure(time_s, found.failure) for time_s, found in _of(FailureFound, entries))
    return Timeline(
        name=f"{job.name}-{job.id}",
        command=" ".join(job.command),
        machine=job.machine,
        began_s=entries[0].time_s,
        ended_s=max([time_s for time_s, _ in (*ends, *given_up)], default=entries[-1].time_s),
        exit_code=ends[-1][1] if ends else None,
        devices={node.hostname: node.devices for node in job.nodes} | added,
        launches=_with_excluded(_launches(entries)),
        verdicts=tuple(itertools.starmap(RecordedVerdict, _of(Verdict, entries))),
        log=tuple(LogLine(time_s, line.what, line.text) for time_s, line in _of(Told, entries)),
        events=tuple(filter(None, map(event_of, entries))),
        failures=tuple(sorted((*failures, *hangs), key=lambda failure: failure.time_s)),
        error=given_up[-1][1].why if given_up else "",
    )


def _of(kind: type[_Kind], entries: Iterable[Entry]) -> list[tuple[float, _Kind]]:
    """Return the records of one kind, each with its time."""
    return [(entry.time_s, entry.record) for entry in entries if isinstance(entry.record, kind)]


def _launches(entries: Sequence[Entry]) -> Iterator[Launch]:
    progress: dict[int, list[Progress]] = {}
    for _, each in _of(LaunchProgressed, entries):
        progress.setdefault(each.launch, []).append(each.progress)
    found: list[Launch] = []
    for entry in entries:
        match entry.record:
            case LaunchBegan(number, nodes, reserve, primary, gap):
                gap_s = {} if gap is None else asdict(gap)
                found.append(Launch(number, nodes, reserve, entry.time_s, gap_s=gap_s, primary=primary))
            case LaunchEnded(_, why, cause, wait_s) if found:
                found[-1] = replace(found[-1], ended_s=entry.time_s, why=why, cause=cause, wait_s=wait_s)
            case OutageEnded(_, lasted_s) if found:
                found[-1] = replace(found[-1], wait_s=found[-1].wait_s + lasted_s)
    for launch in found:
        seen = sorted(progress.get(launch.number, ()), key=lambda each: each.time_s)
        yield replace(launch, progress=tuple(seen))


def _with_excluded(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    completed = list(launches)
    for index, (launch, following) in enumerate(itertools.pairwise(completed)):
        remaining = {*following.nodes, *following.reserve}
        excluded = tuple(host for host in (*launch.nodes, *launch.reserve) if host not in remaining)
        completed[index] = replace(launch, excluded=excluded)
    return tuple(completed)
