"""What happened in a job, put together from its journal or from a dump's events: pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resilience.record.journal import Entry
from resilience.record.words import printable
from telemetry.events import Event

__all__ = ["Finding", "Launch", "Line", "Story", "natural", "story_of_entries", "story_of_events"]

_LAUNCH = re.compile(r"(\d+) began on (.+?)(?:, without (.+))?")
_VERDICT = re.compile(r"(.*) \(([^()]*), (report|restart)\)", re.DOTALL)
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, and when it fell; ``slowdown`` is NaN where it is not known."""

    time_s: float
    host: str
    gpu: str | None
    slowdown: float
    severity: str
    evidence: str
    cause: str
    action: str

    @property
    def device(self) -> str:
        """Name of what is accused."""
        return self.host if self.gpu is None else f"{self.host} gpu {self.gpu}"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the program.

    Attributes
    ----------
    number
        Of the launch.
    nodes, reserve
        Host names.
    began_s, ended_s
        Unix times: when its program began, and when it ended or a relaunch was decided; NaN where that is not known.
    why
        Why it ended.
    gap_s
        Seconds of the way here, by what they went into; empty for the first launch.
    left_out
        Hosts that the next launch went on without.
    """

    number: int
    nodes: tuple[str, ...]
    reserve: tuple[str, ...]
    began_s: float
    ended_s: float = math.nan
    why: str = ""
    gap_s: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line that the user has read."""

    time_s: float
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Story:
    """What happened in a job.

    Attributes
    ----------
    name
        Of the job.
    command
        Its command line, empty where it is not known.
    machine
        Where its controller ran.
    level
        Telemetry level, None where it is not known.
    began_s, ended_s
        Unix times; ``ended_s`` is that of the last news.
    exit_code
        None: it still runs, or ended without a last word.
    devices
        Names of each host's devices.
    launches, findings, lines
        In the order of time.
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
    findings: tuple[Finding, ...]
    lines: tuple[Line, ...]

    @property
    def hosts(self) -> list[str]:
        """All hosts, those of the first launch first."""
        used = dict.fromkeys(host for launch in self.launches for host in (*launch.nodes, *launch.reserve))
        return list(dict.fromkeys([*used, *self.devices]))

    def launch_at(self, time_s: float) -> Launch | None:
        """Return the launch that was the current one at a moment."""
        before = [launch for launch in self.launches if launch.began_s <= time_s]
        return before[-1] if before else None

    def finding_against(self, launch: Launch) -> Finding | None:
        """Return the restart verdict that ended a launch, if one did."""
        for finding in reversed(self.findings):
            accuses = finding.action == "restart" and finding.host in launch.left_out
            if accuses and self.launch_at(finding.time_s) == launch:
                return finding
        return None


def natural(name: str) -> tuple[object, ...]:
    """Return a key for sorting: ``node2`` before ``node10``."""
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name))


def story_of_entries(entries: Sequence[Entry]) -> Story:
    """Put a journal together; entries of kinds that are not known are passed over.

    Raises
    ------
    ValueError
        If an entry of a known kind is not as :mod:`resilience.record.journal` says.
    """
    try:
        return _put_together(entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an entry lacks {error}" if isinstance(error, KeyError) else str(error)) from error


def _put_together(entries: Sequence[Entry]) -> Story:
    job = entries[0].fields
    launches: list[Launch] = []
    findings: list[Finding] = []
    lines: list[Line] = []
    exit_code, ended_s = None, entries[-1].time_s
    for entry in entries:
        what = entry.fields
        match entry.event:
            case "launch":
                gap = {name: float(value) for name, value in (what["gap"] or {}).items()}
                nodes, reserve = _names(what["nodes"]), _names(what["reserve"])
                launches.append(Launch(what["launch"], nodes, reserve, entry.time_s, gap_s=gap))
            case "launch-end" if launches:
                launches[-1] = replace(launches[-1], ended_s=entry.time_s, why=printable(what["why"]))
            case "verdict":
                findings.append(_finding(entry.time_s, what))
            case "told":
                lines.append(Line(entry.time_s, printable(what["what"]), printable(what["text"])))
            case "end":
                exit_code, ended_s = what["exit_code"], entry.time_s
    return Story(
        name=f"{job['name']}-{job['id']}",
        command=" ".join(_names(job["command"])),
        machine=printable(job["machine"]),
        level=job["level"],
        began_s=entries[0].time_s,
        ended_s=ended_s,
        exit_code=exit_code,
        devices={printable(node["hostname"]): _names(node["devices"]) for node in job["nodes"]},
        launches=_with_left_out(launches),
        findings=tuple(findings),
        lines=tuple(lines),
    )


def story_of_events(
    name: str, events: Sequence[Event], devices: Mapping[str, tuple[str, ...]], span_s: tuple[float, float]
) -> Story:
    """Put together what a dump tells: less than a journal, for instance nothing of gaps and reasons.

    Parameters
    ----------
    name
        What to call the job.
    events, devices, span_s
        Of the dump: its events, its hosts' devices, and its first and last moment as Unix times.
    """
    launches: list[Launch] = []
    findings: list[Finding] = []
    for event in events:
        time_s = event.time_us / _SECOND_US
        if event.kind == "launch" and (match := _LAUNCH.fullmatch(event.text)):
            if launches:
                launches[-1] = replace(launches[-1], ended_s=time_s)
            launches.append(Launch(int(match[1]), tuple(match[2].split(", ")), (), time_s))
        elif event.kind == "verdict" and (match := _VERDICT.fullmatch(event.text)):
            evidence, severity, action = match.groups()
            findings.append(
                Finding(time_s, event.host, event.gpu or None, math.nan, severity, evidence, "unknown", action)
            )
    if launches:
        launches[-1] = replace(launches[-1], ended_s=span_s[1])
    return Story(
        name=name,
        command="",
        machine="",
        level=None,
        began_s=span_s[0],
        ended_s=span_s[1],
        exit_code=None,
        devices=devices,
        launches=_with_left_out(launches),
        findings=tuple(findings),
        lines=tuple(Line(event.time_us / _SECOND_US, event.kind, event.text) for event in events),
    )


def _finding(time_s: float, what: Mapping[str, Any]) -> Finding:
    slowdown = math.nan if what["slowdown"] is None else float(what["slowdown"])
    rest = (printable(what[name]) for name in ("severity", "evidence", "cause", "action"))
    gpu = None if what["gpu"] is None else printable(what["gpu"])
    return Finding(time_s, printable(what["host"]), gpu, slowdown, *rest)


def _names(found: Iterable[Any]) -> tuple[str, ...]:
    return tuple(printable(name) for name in found)


def _with_left_out(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    found = list(launches)
    for number, (launch, following) in enumerate(itertools.pairwise(found)):
        there = {*following.nodes, *following.reserve}
        gone = tuple(host for host in (*launch.nodes, *launch.reserve) if host not in there)
        found[number] = replace(launch, left_out=gone)
    return tuple(found)
