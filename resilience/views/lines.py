"""Lines of text in the views: the header, the log, and all about one device. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.text import Text

from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.record import wording
from laggard.resilience.record.timeline import LogLine, RecordedVerdict
from laggard.resilience.text import abbreviated, clock, counted, duration
from laggard.resilience.views.listing import curve
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceState, Snapshot
from laggard.resilience.views.tables import ROLE_STYLES, against_peers

_INDENT = 18
_MOST_LINES, _MOST_LAUNCHES = 200, 20  # the report has all
_ROUTINE = frozenset({"launch", "gap", "state", "telemetry", "report", "logs", "warm", "dump"})
"""First words of lines of the log that only the history shows."""


def header(snapshot: Snapshot, width: int, trouble: str = "") -> list[Text]:
    """Return the lines above everything else: the job, its nodes, and the newest notable line of its log."""
    timeline = snapshot.timeline
    launch = timeline.launches[-1] if timeline.launches else None
    first = Text.assemble(
        (timeline.name, "bold"),
        f"  {clock(snapshot.taken_s - timeline.began_s)}",
        f"  launch {launch.number}" if launch else "  preparing the first launch",
        f"  on {counted(len(launch.nodes), 'node', 'nodes')}" if launch else "",
    )
    if launch and (n_reserve := snapshot.n_nodes("reserve")):
        first.append(f", {n_reserve} in reserve")
    if n_excluded := snapshot.n_nodes("excluded"):
        first.append(f", {n_excluded} excluded", "red")
    if n_slow := sum(device.verdict is not None and device.role != "excluded" for device in snapshot.devices):
        first.append(f", {counted(n_slow, 'device', 'devices')} suspect or slow", "bold red")
    lines = [first, _latest_notable_line(snapshot)]
    if trouble:
        lines.append(Text(trouble, "bold red"))
    elif snapshot.missing:
        lines.append(Text(f"no answer from {abbreviated(snapshot.missing)}", "bold magenta"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def device_lines(
    device: DeviceState, snapshot: Snapshot, history: Mapping[str, Sequence[float]], width: int
) -> list[Text]:
    """Return everything that is known about one device, each reading with its curve."""
    lines = [Text.assemble((device.role, ROLE_STYLES[device.role]), f"  {device.model}")]
    for each in DEVICE_READINGS:
        if each.name in device.readings:
            past = history.get(each.name, ())
            scale = (0.0, 100.0) if each.unit == "%" else (min(past, default=0.0), max(past, default=0.0))
            lines.append(_reading(each.label, f"{device.readings[each.name]:,.0f} {each.unit}", past, scale, width))
    if device.probe_s is not None:
        past = [value for value in device.probe_history_s if math.isfinite(value)]  # NaN: it failed
        lines.append(_reading("probe", f"{1000 * device.probe_s:.2f} ms", past, (min(past), max(past)), width))
    if device.peer_ratio is not None:
        lines.append(Text(against_peers(device.peer_ratio)))
    about_it = (each for each in snapshot.timeline.verdicts if each.is_about(device.host, device.gpu))
    sentences = (textwrap.wrap(_sentence(verdict, snapshot), max(20, width)) for verdict in about_it)
    return [*lines, *(Text(part, "red") for parts in sentences for part in parts)]


def _reading(label: str, value: str, past: Sequence[float], scale: tuple[float, float], width: int) -> Text:
    return Text.assemble((f"{label:12}", "dim"), f"{value:>9}  ", (curve(past, max(0, width - 23), *scale), "green"))


def launch_lines(snapshot: Snapshot, width: int) -> list[Text]:
    """Return the newest launches, the newest first."""
    lines = []
    for launch in snapshot.timeline.launches[: -_MOST_LAUNCHES - 1 : -1]:
        length_s = (snapshot.taken_s if math.isnan(launch.ended_s) else launch.ended_s) - launch.began_s
        why = decision_wording.reason(launch.why) if launch.why else "running"
        text = f"{abbreviated(launch.nodes)}, for {duration(length_s)}: {why}"
        lines += _wrapped(LogLine(launch.began_s, f"launch {launch.number}", text), snapshot, width)
    return lines


def log_lines(snapshot: Snapshot, width: int) -> list[Text]:
    """Return the job's log, the newest line first."""
    newest = reversed(snapshot.timeline.log[-_MOST_LINES:])
    return [part for line in newest for part in _wrapped(line, snapshot, width)]


def _wrapped(line: LogLine, snapshot: Snapshot, width: int) -> list[Text]:
    first, *more = textwrap.wrap(line.text, max(20, width - _INDENT)) or [""]
    rest = [Text(" " * _INDENT + part, _line_style(line)) for part in more]
    return [_log_line(replace(line, text=first), snapshot.timeline.began_s), *rest]


def _latest_notable_line(snapshot: Snapshot) -> Text:
    for line in reversed(snapshot.timeline.log):
        if line.what not in _ROUTINE:
            return _log_line(line, snapshot.timeline.began_s)
    return Text("no verdicts so far", "dim")


def _log_line(line: LogLine, began_s: float) -> Text:
    at = clock(line.time_s - began_s)
    return Text.assemble((f"{at:>7} ", "dim"), (f"{line.what:<9} ", "bold"), (line.text, _line_style(line)))


def _line_style(line: LogLine) -> str:
    return "" if line.what.split()[0] in _ROUTINE else "magenta"


def _sentence(verdict: RecordedVerdict, snapshot: Snapshot) -> str:
    at = clock(verdict.time_s - snapshot.timeline.began_s)
    return f"{at} {verdict.of.severity}: {verdict.of.evidence}{wording.likely_cause(verdict.of.cause)}"
