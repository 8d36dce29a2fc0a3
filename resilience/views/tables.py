"""Tables and lines that the views are made of: pure functions from a snapshot to something that rich can print."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from resilience.record.story import Finding, Line, natural
from resilience.record.words import clock, duration, some
from resilience.views.snapshot import DeviceState, NodeState, Role, Snapshot, UserMetric

__all__ = [
    "SORTS",
    "Sort",
    "device_in_depth",
    "device_table",
    "launch_table",
    "metric_table",
    "news",
    "node_table",
    "sorted_devices",
    "story_lines",
]

Sort = Literal["worst", "name", "utilisation", "power", "temperature", "clock", "probe"]
SORTS: tuple[Sort, ...] = ("worst", "name", "utilisation", "power", "temperature", "clock", "probe")
# From this width on there is room for more.
WIDE = 110
# From here on a probe time is shown as behind its peers'; what is slow for sure the verdicts tell.
BEHIND = 1.1
SPARKS = "▁▂▃▄▅▆▇█"
_INDENT = 18
_NEWS = frozenset({"verdict", "relaunch", "stays", "notice", "reserve", "warning", "lost", "end", "stop", "request"})
_IN_DEPTH = {
    "utilization_percent": ("busy", "%"),
    "power_w": ("power", "W"),
    "temperature_c": ("temperature", "°C"),
    "clock_mhz": ("clock", "MHz"),
    "memory_percent": ("memory", "%"),
}
_COLUMNS = {
    "utilization_percent": "util %",
    "power_w": "power W",
    "temperature_c": "°C",
    "clock_mhz": "MHz",
    "memory_percent": "memory %",
}
_SEVERITY = {"suspect": 1, "slow": 2, "very slow": 3, "faulty": 4}
_STYLE: Mapping[Role, str] = {"primary": "bold", "in use": "", "reserve": "dim", "left out": "red", "waiting": "dim"}


def sorted_devices(devices: Sequence[DeviceState], sort: Sort, *, backwards: bool = False) -> list[DeviceState]:
    """Return the devices in an order; what was not measured comes last."""
    keys: dict[Sort, Callable[[DeviceState], tuple[object, ...]]] = {
        "worst": lambda device: (-_badness(device), -(device.against_peers or 0.0)),
        "name": lambda _: (),
        "utilisation": lambda device: _least_first(device.readings.get("utilization_percent")),
        "power": lambda device: _least_first(device.readings.get("power_w")),
        "temperature": lambda device: _least_first(_negative(device.readings.get("temperature_c"))),
        "clock": lambda device: _least_first(device.readings.get("clock_mhz")),
        "probe": lambda device: _least_first(_negative(device.probe_s)),
    }
    key = keys[sort]
    found = sorted(devices, key=lambda device: (*key(device), natural(device.host), natural(device.gpu)))
    return found[::-1] if backwards else found


def device_table(
    devices: Sequence[DeviceState], width: int, selected: int | None, snapshot: Snapshot
) -> RenderableType:
    """Return a table of some of a job's devices, one line each; ``selected`` is the row to point at.

    What was measured on no device of the job has no column.
    """
    if not snapshot.devices:
        return Text("the nodes of this job have no devices", "dim")
    wide = width >= WIDE
    measured = {name for device in snapshot.devices for name in device.readings}
    columns = {name: heading for name, heading in _COLUMNS.items() if name in measured}
    if not wide:
        columns.pop("memory_percent", None)
    probed = any(device.probe_s is not None for device in snapshot.devices)
    table = _table()
    table.add_column("" if selected is None else " ", width=1)
    table.add_column("device", no_wrap=True, overflow="ellipsis", max_width=32 if wide else 20)
    for heading in [*columns.values(), *(["probe ms", "x peers"] if probed else [])]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, device in enumerate(devices):
        cells: list[str | Text] = [_number(device.readings.get(name), 0) for name in columns]
        if probed:
            probe_ms = None if device.probe_s is None else 1000 * device.probe_s
            cells += [_number(probe_ms, 2), _against(device.against_peers)]
        table.add_row(
            "▶" if row == selected else "",
            Text(device.name, _STYLE[device.role]),
            *cells,
            _verdict(device),
            style="reverse" if row == selected else "",
        )
    return table


def node_table(nodes: Sequence[NodeState]) -> Table:
    """Return a table of nodes, one line each."""
    table = _table()
    table.add_column("node", no_wrap=True, overflow="ellipsis", max_width=32)
    table.add_column("role", no_wrap=True)
    for name in ("devices", "load", "cpu %", "memory %", "processes", "verdicts"):
        table.add_column(name, justify="right", no_wrap=True)
    for node in nodes:
        table.add_row(
            Text(node.host),
            Text(node.role, _STYLE[node.role]),
            str(node.devices),
            _number(node.readings.get("load_average"), 1),
            _number(node.readings.get("cpu_percent"), 0),
            _number(node.readings.get("memory_percent"), 0),
            _number(node.readings.get("processes"), 0),
            str(node.findings or ""),
        )
    return table


def metric_table(metrics: Sequence[UserMetric], level: int) -> RenderableType:
    """Return a table of the program's own metrics, one line each."""
    if not metrics:
        why = "run with --telemetry-level=1 or more to have them" if level == 0 else "the program has sent none lately"
        return Text(f"no metrics of the program: {why}", "dim")
    table = _table()
    table.add_column("metric", no_wrap=True, overflow="ellipsis", max_width=40)
    for name in ("series", "lowest", "mean", "highest"):
        table.add_column(name, justify="right", no_wrap=True)
    for metric in metrics:
        values = (f"{value:.4g}" for value in (metric.low, metric.mean, metric.high))
        table.add_row(Text(metric.name), str(metric.series), *values)
    return table


def launch_table(snapshot: Snapshot) -> Table:
    """Return a table of the launches so far."""
    story = snapshot.story
    table = _table()
    for name in ("launch", "nodes", "began", "ran", "way here", "ended because"):
        table.add_column(name, justify="left" if name in {"nodes", "ended because"} else "right")
    for launch in story.launches:
        end_s = snapshot.taken_s if math.isnan(launch.ended_s) else launch.ended_s
        table.add_row(
            str(launch.number),
            some(launch.nodes),
            clock(launch.began_s - story.began_s),
            duration(end_s - launch.began_s),
            duration(sum(launch.gap_s.values())) if launch.gap_s else "",
            Text(launch.why or "it runs"),
        )
    return table


def device_in_depth(device: DeviceState, snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """Return all that is known of one device."""
    sparks = max(10, min(60, width - 30))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("device", Text(f"{device.name}  ({device.role})", "bold"))
    if device.model:
        table.add_row("model", Text(device.model))
    for name, (label, unit) in _IN_DEPTH.items():
        if name in device.readings:
            table.add_row(label, f"{device.readings[name]:,.0f} {unit}")
    if device.utilization_history:
        table.add_row("busy lately", f"{_spark(device.utilization_history[-sparks:], 0, 100)}  0 to 100 %")
    if device.probe_s is not None:
        low, high = min(device.probe_history_s), max(device.probe_history_s)
        against = "" if device.against_peers is None else f", {device.against_peers:.2f} times its peers' median"
        table.add_row("probe", f"{1000 * device.probe_s:.2f} ms{against}")
        line = _spark(device.probe_history_s[-sparks:], 0, high)
        table.add_row("lately", f"{line}  {1000 * low:.2f} to {1000 * high:.2f} ms")
    told = [finding for finding in snapshot.story.findings if finding.host == device.host][-height:]
    against_it = [finding for finding in told if finding.gpu in {None, device.gpu}]
    for finding in against_it:
        table.add_row("verdict", Text(_sentence(finding, snapshot), "red"))
    if not against_it:
        table.add_row("verdict", Text("none", "dim"))
    return table


def story_lines(snapshot: Snapshot, width: int) -> list[Text]:
    """Return what the user was told, the newest first; long lines go on in the next row."""
    began_s, rows = snapshot.story.began_s, []
    for line in reversed(snapshot.story.lines):
        first, *more = textwrap.wrap(line.text, max(20, width - _INDENT)) or [""]
        rows.append(_story_line(replace(line, text=first), began_s))
        rows += [Text(" " * _INDENT + rest, _line_style(line)) for rest in more]
    return rows


def news(snapshot: Snapshot) -> Text:
    """Return the newest line of what is worth reading at any time."""
    for line in reversed(snapshot.story.lines):
        if line.what in _NEWS:
            return _story_line(line, snapshot.story.began_s)
    return Text("no verdict so far", "dim")


def _story_line(line: Line, began_s: float) -> Text:
    at = clock(line.time_s - began_s)
    return Text.assemble((f"{at:>7} ", "dim"), (f"{line.what:<9} ", "bold"), (line.text, _line_style(line)))


def _line_style(line: Line) -> str:
    return "yellow" if line.what in _NEWS - {"end"} else ""


def _sentence(finding: Finding, snapshot: Snapshot) -> str:
    cause = "" if finding.cause == "unknown" else f"; likely cause: {finding.cause}"
    at = clock(finding.time_s - snapshot.story.began_s)
    return f"{at} {finding.severity}: {finding.evidence}{cause}"


def _verdict(device: DeviceState) -> Text:
    if device.role == "left out":
        return Text("left out" + (f", {device.finding.severity}" if device.finding else ""), "red")
    if device.finding is None:
        return Text("in reserve" if device.role == "reserve" else "", "dim")
    return Text(device.finding.severity, "bold yellow" if device.finding.severity == "suspect" else "bold red")


def _badness(device: DeviceState) -> float:
    """Return how much a device deserves to be looked at: accused ones in use, then those behind, then the rest."""
    if device.role in {"left out", "reserve"}:
        return -1.0 if device.role == "left out" else -2.0
    return float(_SEVERITY.get(device.finding.severity, 1)) if device.finding else 0.0


def _least_first(value: float | None) -> tuple[object, ...]:
    return (1, 0.0) if value is None else (0, value)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _against(ratio: float | None) -> Text:
    if ratio is None:
        return Text("")
    return Text(f"{ratio:.2f}", "bold yellow" if ratio >= BEHIND else "")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _spark(values: Sequence[float], low: float, high: float) -> str:
    span = (high - low) or 1.0
    return "".join(SPARKS[max(0, min(7, int(8 * (value - low) / span)))] for value in values)


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="bold cyan", padding=(0, 1, 0, 0))
