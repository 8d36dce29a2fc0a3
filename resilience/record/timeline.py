"""The course of a job, rebuilt from its journal or from the events in a dump: pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from laggard.resilience.record.journal import Entry
from laggard.resilience.text import printable
from laggard.telemetry.events import Event

__all__ = [
    "Launch",
    "LogLine",
    "RecordedFailure",
    "RecordedVerdict",
    "Timeline",
    "natural",
    "timeline_of_entries",
    "timeline_of_events",
]

_LAUNCH = re.compile(r"(\d+) began on (.+?)(?:, without (.+))?")
_VERDICT = re.compile(r"(.*) \(([^()]*), (report|restart)\)", re.DOTALL)
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
    kind
        ``program``, ``hardware``, ``network``, ``transient``, ``capacity``, ``unknown`` or ``hang``.
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


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the program.

    Attributes
    ----------
    number
        Number of the launch.
    nodes, reserve
        Host names.
    began_s, ended_s
        Unix times: when its program started, and when it ended or a relaunch was decided; NaN if unknown.
    why
        Why it ended.
    gap_s
        Length in seconds of each phase of the relaunch that led to this launch; empty for the first launch.
    excluded
        Hosts that the next launch does without.
    """

    number: int
    nodes: tuple[str, ...]
    reserve: tuple[str, ...]
    began_s: float
    ended_s: float = math.nan
    why: str = ""
    gap_s: Mapping[str, float] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()


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

    @property
    def hosts(self) -> list[str]:
        """All hosts, those of the first launch first."""
        used = dict.fromkeys(host for launch in self.launches for host in (*launch.nodes, *launch.reserve))
        return list(dict.fromkeys([*used, *self.devices]))

    def launch_at(self, time_s: float) -> Launch | None:
        """Return the launch that was current at a time."""
        before = [launch for launch in self.launches if launch.began_s <= time_s]
        return before[-1] if before else None

    def verdict_that_ended(self, launch: Launch) -> RecordedVerdict | None:
        """Return the restart verdict that ended a launch, if one did."""
        for verdict in reversed(self.verdicts):
            matches = verdict.action == "restart" and verdict.host in launch.excluded
            if matches and self.launch_at(verdict.time_s) == launch:
                return verdict
        return None


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
    except (KeyError, TypeError, AttributeError) as error:
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
            launches.append(Launch(int(match[1]), tuple(match[2].split(", ")), (), time_s))
        elif event.kind == "verdict" and (match := _VERDICT.fullmatch(event.text)):
            evidence, severity, action = match.groups()
            verdicts.append(
                RecordedVerdict(time_s, event.host, event.gpu or None, math.nan, severity, evidence, "unknown", action)
            )
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
    exit_code, ended_s = None, entries[-1].time_s
    for entry in entries:
        fields = entry.fields
        match entry.event:
            case "launch":
                gap_s = {phase: float(seconds) for phase, seconds in (fields["gap"] or {}).items()}
                nodes, reserve = _names(fields["nodes"]), _names(fields["reserve"])
                launches.append(Launch(fields["launch"], nodes, reserve, entry.time_s, gap_s=gap_s))
            case "launch-end" if launches:
                launches[-1] = replace(launches[-1], ended_s=entry.time_s, why=printable(fields["why"]))
            case "verdict":
                verdicts.append(_verdict(entry.time_s, fields))
            case "failure":
                failures.append(_failure(entry.time_s, fields))
            case "hang":
                failures.append(_hang(entry.time_s, fields))
            case "told":
                log.append(LogLine(entry.time_s, printable(fields["what"]), printable(fields["text"])))
            case "end":
                exit_code, ended_s = fields["exit_code"], entry.time_s
    return Timeline(
        name=f"{job['name']}-{job['id']}",
        command=" ".join(_names(job["command"])),
        machine=printable(job["machine"]),
        level=job["level"],
        began_s=entries[0].time_s,
        ended_s=ended_s,
        exit_code=exit_code,
        devices={printable(node["hostname"]): _names(node["devices"]) for node in job["nodes"]},
        launches=_with_excluded(launches),
        verdicts=tuple(verdicts),
        log=tuple(log),
        failures=tuple(failures),
    )


def _failure(time_s: float, fields: Mapping[str, Any]) -> RecordedFailure:
    rank = None if fields["rank"] is None else int(fields["rank"])
    host, kind, sentence = (printable(fields[name]) for name in ("host", "kind", "sentence"))
    return RecordedFailure(time_s, host, rank, int(fields["exit_code"]), kind, sentence)


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
