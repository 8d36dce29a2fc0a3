"""The course of a job, rebuilt from its journal or from the events in a dump: pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from laggard.node_names import parted
from laggard.resilience.record.journal import Entry
from laggard.resilience.text import printable
from laggard.telemetry.events import Event

__all__ = [
    "Launch",
    "LogLine",
    "Progress",
    "RecordedFailure",
    "RecordedVerdict",
    "Timeline",
    "natural",
    "timeline_of_entries",
    "timeline_of_events",
]

_LAUNCH = re.compile(r"(\d+) began on (.+?)(?:, without (.+))?")
_VERDICT = re.compile(r"(.*?)(?:; likely cause: (.*))? \(([^()]*), (report|restart)\)", re.DOTALL)
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class RecordedVerdict:
    """A verdict and its time; ``slowdown`` is NaN if unknown."""

    time_s: float
    host: str
    gpu: str | None
    slowdown: float
    severity: str
    evidence: str
    cause: str
    action: str

    @property
    def target(self) -> str:
        """Name of the device or node that the verdict is against."""
        return self.host if self.gpu is None else f"{self.host} gpu {self.gpu}"

    @property
    def is_over(self) -> bool:
        """Whether it says that the device or node is no longer slow."""
        return self.severity == "well again"

    def is_about(self, host: str, gpu: str | None) -> bool:
        """Return whether it is against a device, or against the device's whole node."""
        return host == self.host and self.gpu in {None, gpu}


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failure of the program.

    Attributes
    ----------
    time_s
        Unix time at which it was known.
    host, rank
        Where it began; ``rank`` is None if unknown, and ``host`` of a hang is empty if unknown.
    exit_code
        Minus the signal number if the process was killed by a signal; None if it hangs.
    kind, cause
        ``program``, ``hardware``, ``network``, ``transient``, ``capacity``, ``unknown`` or ``hang``; and what it was,
        in a few words, empty if unknown.
    sentence
        The failure in one sentence.
    stacks
        Name of the file in the record's folder with the stacks of all ranks; empty if there is none.
    """

    time_s: float
    host: str
    rank: int | None
    exit_code: int | None
    kind: str
    sentence: str
    stacks: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a launch had come at a Unix time: the commits to State by all launches, and the step it reported last."""

    time_s: float
    commits: int
    step: float | None


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the program.

    Attributes
    ----------
    number
        Number of the launch.
    nodes, reserve
        Host names.
    primary
        The node that holds State and the controller; if it is not one of ``nodes``, its devices are not in use.
    began_s, ended_s
        Unix times: when its program started, and when it ended or a relaunch was decided; NaN if unknown.
    why
        Why it ended.
    gap_s
        Length in seconds of each phase of the relaunch that led to this launch; empty for the first launch.
    excluded
        Hosts that the next launch does without.
    cause
        What kind of event ended it, as in the journal; empty if unknown.
    wait_s
        The back-off before the next launch, in seconds.
    progress
        How far it had come, in chronological order; empty if unknown.
    """

    number: int
    nodes: tuple[str, ...]
    reserve: tuple[str, ...]
    began_s: float
    ended_s: float = math.nan
    why: str = ""
    gap_s: Mapping[str, float] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    cause: str = ""
    wait_s: float = 0.0
    progress: tuple[Progress, ...] = ()
    primary: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the job's log, as the user saw it; ``what`` is its first word."""

    time_s: float
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The course of a job.

    Attributes
    ----------
    name
        Name of the job.
    command
        Its command line; empty if unknown.
    machine
        Host name of its controller.
    level
        Telemetry level; None if unknown.
    began_s, ended_s
        Unix times; ``ended_s`` of a job without an end is the time of its last event.
    exit_code
        None if the job is still running, or was killed before it could record its end.
    devices
        Device names by host.
    launches, verdicts, log, failures
        In chronological order.
    error
        Why laggard itself had to give up; empty if it did not.
    n_left_out
        How many of the program's own metrics the record has no room for.
    """

    name: str
    command: str
    machine: str
    level: int | None
    began_s: float
    ended_s: float
    exit_code: int | None
    devices: Mapping[str, tuple[str, ...]]
    launches: tuple[Launch, ...]
    verdicts: tuple[RecordedVerdict, ...]
    log: tuple[LogLine, ...]
    failures: tuple[RecordedFailure, ...] = ()
    error: str = ""
    n_left_out: int = 0

    @property
    def hosts(self) -> list[str]:
        """All hosts, those of the first launch first."""
        used = dict.fromkeys(
            host
            for launch in self.launches
            for host in (*filter(None, [launch.primary]), *launch.nodes, *launch.reserve)
        )
        return list(dict.fromkeys([*used, *self.devices]))

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
            matches = verdict.action == "restart" and verdict.host in launch.excluded
            if matches and self.launch_at(verdict.time_s) == launch:
                return verdict
        return None


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[object, ...]:
    """Return a sort key that puts ``node2`` before ``node10``."""
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name))


def timeline_of_entries(entries: Sequence[Entry]) -> Timeline:
    """Build a timeline from a journal; entries of unknown kinds are ignored.

    Raises
    ------
    ValueError
        If an entry of a known kind differs from its description in :mod:`laggard.resilience.record.journal`.
    """
    try:
        return _timeline(entries)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"an entry lacks {error}" if isinstance(error, KeyError) else str(error)) from error


def timeline_of_events(
    name: str, events: Sequence[Event], devices: Mapping[str, tuple[str, ...]], span_s: tuple[float, float]
) -> Timeline:
    """Build a timeline from a dump, which holds less than a journal: for instance no gaps and no reasons.

    Parameters
    ----------
    name
        Name for the job.
    events, devices, span_s
        From the dump: its events, the device names by host, and its first and last Unix times.
    """
    launches: list[Launch] = []
    verdicts: list[RecordedVerdict] = []
    for event in events:
        time_s = event.time_us / _SECOND_US
        if event.kind == "launch" and (match := _LAUNCH.fullmatch(event.text)):
            if launches:
                launches[-1] = replace(launches[-1], ended_s=time_s)
            launches.append(Launch(int(match[1]), tuple(parted(match[2])), (), time_s))
        elif event.kind == "verdict" and (match := _VERDICT.fullmatch(event.text)):
            evidence, cause, severity, action = match.groups()
            rest = (severity, evidence, cause or "unknown", action)
            verdicts.append(RecordedVerdict(time_s, event.host, event.gpu or None, math.nan, *rest))
    if launches:
        launches[-1] = replace(launches[-1], ended_s=span_s[1])
    return Timeline(
        name=name,
        command="",
        machine="",
        level=None,
        began_s=span_s[0],
        ended_s=span_s[1],
        exit_code=None,
        devices=devices,
        launches=_with_excluded(launches),
        verdicts=tuple(verdicts),
        log=tuple(LogLine(event.time_us / _SECOND_US, event.kind, event.text) for event in events),
    )


def _timeline(entries: Sequence[Entry]) -> Timeline:
    job = entries[0].fields
    launches: list[Launch] = []
    verdicts: list[RecordedVerdict] = []
    log: list[LogLine] = []
    failures: list[RecordedFailure] = []
    progress: dict[int, list[Progress]] = {}
    devices = {printable(node["hostname"]): _names(node["devices"]) for node in job["nodes"]}
    exit_code, ended_s, error, n_left_out = None, entries[-1].time_s, "", 0
    for entry in entries:
        fields = entry.fields
        match entry.event:
            case "launch":
                gap_s = {phase: float(seconds) for phase, seconds in (fields["gap"] or {}).items()}
                nodes, reserve = _names(fields["nodes"]), _names(fields["reserve"])
                # Journals of earlier versions lack the primary: it was the first node.
                primary = printable(fields.get("primary") or next(iter(nodes), ""))
                launches.append(Launch(fields["launch"], nodes, reserve, entry.time_s, gap_s=gap_s, primary=primary))
            case "joined":
                devices[printable(fields["hostname"])] = _names(fields["devices"])
            case "launch-end" if launches:
                launches[-1] = _ended(launches[-1], entry.time_s, fields)
            case "progress":
                progress.setdefault(int(fields["launch"]), []).append(_progress(fields))
            case "verdict":
                verdicts.append(_verdict(entry.time_s, fields))
            case "failure":
                failures.append(_failure(entry.time_s, fields))
            case "hang":
                failures.append(_hang(entry.time_s, fields))
            case "told":
                log.append(LogLine(entry.time_s, printable(fields["what"]), printable(fields["text"])))
            case "left-out":
                n_left_out = int(fields["n_metrics"])
            case "error":
                error, ended_s = printable(fields["why"]), entry.time_s
            case "end":
                exit_code, ended_s = fields["exit_code"], entry.time_s
    return Timeline(
        name=printable(f"{job['name']}-{job['id']}"),
        command=" ".join(_names(job["command"])),
        machine=printable(job["machine"]),
        level=job["level"],
        began_s=entries[0].time_s,
        ended_s=ended_s,
        exit_code=exit_code,
        devices=devices,
        launches=_with_excluded(_with_progress(launches, progress)),
        verdicts=tuple(verdicts),
        log=tuple(log),
        failures=tuple(failures),
        error=error,
        n_left_out=n_left_out,
    )


def _ended(launch: Launch, time_s: float, fields: Mapping[str, Any]) -> Launch:
    # Journals of earlier versions lack the cause and the back-off.
    cause, wait_s = printable(fields.get("cause", "")), _finite(fields.get("wait_s", 0.0))
    return replace(launch, ended_s=time_s, why=printable(fields["why"]), cause=cause, wait_s=wait_s)


def _progress(fields: Mapping[str, Any]) -> Progress:
    step = None if fields["step"] is None else _finite(fields["step"])
    return Progress(_finite(fields["seen_s"]), int(fields["commits"]), step)


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _with_progress(launches: Iterable[Launch], progress: Mapping[int, Sequence[Progress]]) -> Iterable[Launch]:
    for launch in launches:
        seen = sorted(progress.get(launch.number, ()), key=lambda each: each.time_s)
        yield replace(launch, progress=tuple(seen))


def _failure(time_s: float, fields: Mapping[str, Any]) -> RecordedFailure:
    rank = None if fields["rank"] is None else int(fields["rank"])
    host, kind, sentence, cause = (printable(fields[name]) for name in ("host", "kind", "sentence", "cause"))
    return RecordedFailure(time_s, host, rank, int(fields["exit_code"]), kind, sentence, cause=cause)


def _hang(time_s: float, fields: Mapping[str, Any]) -> RecordedFailure:
    host, sentence, stacks = (printable(fields[name] or "") for name in ("suspect", "sentence", "stacks"))
    return RecordedFailure(time_s, host, None, None, "hang", sentence, stacks)


def _verdict(time_s: float, fields: Mapping[str, Any]) -> RecordedVerdict:
    slowdown = math.nan if fields["slowdown"] is None else float(fields["slowdown"])
    rest = (printable(fields[name]) for name in ("severity", "evidence", "cause", "action"))
    gpu = None if fields["gpu"] is None else printable(fields["gpu"])
    return RecordedVerdict(time_s, printable(fields["host"]), gpu, slowdown, *rest)


def _names(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(printable(value) for value in values)


def _with_excluded(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    completed = list(launches)
    for index, (launch, following) in enumerate(itertools.pairwise(completed)):
        remaining = {*following.nodes, *following.reserve}
        excluded = tuple(host for host in (*launch.nodes, *launch.reserve) if host not in remaining)
        completed[index] = replace(launch, excluded=excluded)
    return tuple(completed)
