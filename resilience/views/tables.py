"""The tables and lines that make up the views: pure functions from a snapshot to what rich can print."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.record import wording
from laggard.resilience.record.timeline import LogLine, RecordedVerdict, natural
from laggard.resilience.text import abbreviated, clock, duration
from laggard.resilience.views.map import READINGS
from laggard.resilience.views.snapshot import DeviceState, NodeState, Role, Snapshot, UserMetric

Sort = Literal["worst", "name", "utilisation", "power", "temperature", "clock", "probe"]
SORTS: tuple[Sort, ...] = ("worst", "name", "utilisation", "power", "temperature", "clock", "probe")
# In columns: a terminal this wide has room for more, and one narrower than this for less.
WIDE, NARROW = 110, 76
_LEAST = frozenset({"utilization_percent", "temperature_c"})
# From this ratio on a probe time is highlighted; whether the device is slow is for the verdicts to say.
HIGHLIGHT_RATIO = 1.1
SPARKS = "▁▂▃▄▅▆▇█"
_INDENT = 18
_NOTABLE = frozenset(
    {
        "verdict",
        "relaunch",
        "waits",
        "returned",
        "stays",
        "notice",
        "reserve",
        "warning",
        "lost",
        "end",
        "stop",
        "request",
    }
)
_COLUMNS = {
    "utilization_percent": "util %",
    "power_w": "power W",
    "temperature_c": "°C",
    "clock_mhz": "MHz",
    "memory_percent": "memory %",
}
_SEVERITY = {"suspect": 1, "slow": 2, "very slow": 3, "faulty": 4}
_STYLE: Mapping[Role, str] = {
    "primary": "bold",
    "head-only": "dim",
    "in use": "",
    "reserve": "dim",
    "excluded": "red",
    "waiting": "dim",
}


def sorted_devices(devices: Sequence[DeviceState], sort: Sort, *, backwards: bool = False) -> list[DeviceState]:
    """Return the devices in an order; those without a reading come last."""
    keys: dict[Sort, Callable[[DeviceState], tuple[object, ...]]] = {
        "worst": lambda device: (-_badness(device), -(device.peer_ratio or 0.0)),
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
    """Return a table of some of a job's devices, one line each; ``selected`` is the row to highlight."""
    # A metric that was measured on no device of the job has no column.
    if not snapshot.devices:
        return Text("the nodes of this job have no devices", "dim")
    wide = width >= WIDE
    measured = {name for device in snapshot.devices for name in device.readings}
    columns = {name: heading for name, heading in _COLUMNS.items() if name in measured}
    if not wide:
        columns.pop("memory_percent", None)
    if width < NARROW:
        columns = {name: heading for name, heading in columns.items() if name in _LEAST}
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
            cells += [_number(probe_ms, 2), _ratio(device.peer_ratio)]
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
            str(node.verdicts or ""),
        )
    return table


def metric_table(metrics: Sequence[UserMetric], level: int) -> RenderableType:
    """Return a table of the program's own metrics, one line each."""
    if not metrics:
        why = "run with --telemetry-level=1 or higher" if level == 0 else "the program has sent none recently"
        return Text(f"no program metrics: {why}", "dim")
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
    timeline = snapshot.timeline
    table = _table()
    for name in ("launch", "nodes", "began", "ran", "gap before", "ended because"):
        table.add_column(name, justify="left" if name in {"nodes", "ended because"} else "right")
    for launch in timeline.launches:
        end_s = snapshot.taken_s if math.isnan(launch.ended_s) else launch.ended_s
        table.add_row(
            str(launch.number),
            abbreviated(launch.nodes),
            clock(launch.began_s - timeline.began_s),
            duration(end_s - launch.began_s),
            duration(sum(launch.gap_s.values())) if launch.gap_s else "",
            Text(decision_wording.reason(launch.why) if launch.why else "still running"),
        )
    return table


def device_details(device: DeviceState, snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """Return everything that is known about one device."""
    sparks = max(10, min(60, width - 42))  # beside the label and the range
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("device", Text(f"{device.name}  ({device.role})", "bold"))
    if device.model:
        table.add_row("model", Text(device.model))
    for name, (label, unit) in READINGS.items():
        if name in device.readings:
            table.add_row(label, f"{device.readings[name]:,.0f} {unit}")
    if device.utilization_history:
        table.add_row("recent utilisation", f"{_spark(device.utilization_history[-sparks:], 0, 100)}  0 to 100 %")
    if device.probe_s is not None:
        ratio = "" if device.peer_ratio is None else f", {device.peer_ratio:.2f} times its peers' median"
        table.add_row("probe time", f"{1000 * device.probe_s:.2f} ms{ratio}")
        recent = device.probe_history_s[-sparks:]
        low, high = spark_scale(recent)
        table.add_row("recent probe times", f"{_spark(recent, low, high)}  {1000 * low:.2f} to {1000 * high:.2f} ms")
    against_node = [verdict for verdict in snapshot.timeline.verdicts if verdict.of.host == device.host][-height:]
    verdicts = [verdict for verdict in against_node if verdict.is_about(device.host, device.gpu)]
    for verdict in verdicts:
        table.add_row("verdict", Text(_sentence(verdict, snapshot), "red"))
    if not verdicts:
        table.add_row("verdict", Text("none", "dim"))
    return table


def log_lines(snapshot: Snapshot, width: int) -> list[Text]:
    """Return the job's log, the newest line first; long lines are wrapped."""
    began_s, rows = snapshot.timeline.began_s, []
    for line in reversed(snapshot.timeline.log):
        first, *more = textwrap.wrap(line.text, max(20, width - _INDENT)) or [""]
        rows.append(_log_line(replace(line, text=first), began_s))
        rows += [Text(" " * _INDENT + rest, _line_style(line)) for rest in more]
    return rows


def latest_notable_line(snapshot: Snapshot) -> Text:
    """Return the newest line of the log that matters on every page."""
    for line in reversed(snapshot.timeline.log):
        if line.what in _NOTABLE:
            return _log_line(line, snapshot.timeline.began_s)
    return Text("no verdicts so far", "dim")


def _log_line(line: LogLine, began_s: float) -> Text:
    at = clock(line.time_s - began_s)
    return Text.assemble((f"{at:>7} ", "dim"), (f"{line.what:<9} ", "bold"), (line.text, _line_style(line)))


def _line_style(line: LogLine) -> str:
    return "magenta" if line.what in _NOTABLE - {"end"} else ""


def _sentence(verdict: RecordedVerdict, snapshot: Snapshot) -> str:
    at = clock(verdict.time_s - snapshot.timeline.began_s)
    return f"{at} {verdict.of.severity}: {verdict.of.evidence}{wording.likely_cause(verdict.of.cause)}"


def _verdict(device: DeviceState) -> Text:
    if device.role == "excluded":
        return Text("excluded" + (f", {device.verdict.of.severity}" if device.verdict else ""), "red")
    if device.verdict is None:
        return Text("in reserve" if device.role == "reserve" else "", "dim")
    return Text(device.verdict.of.severity, "bold magenta" if device.verdict.of.severity == "suspect" else "bold red")


def _badness(device: DeviceState) -> float:
    """Return the rank in the order of the worst: devices in use by severity, then excluded ones, then the reserve."""
    if device.role in {"excluded", "reserve"}:
        return -1.0 if device.role == "excluded" else -2.0
    return float(_SEVERITY.get(device.verdict.of.severity, 1)) if device.verdict else 0.0


def _least_first(value: float | None) -> tuple[object, ...]:
    return (1, 0.0) if value is None else (0, value)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _ratio(ratio: float | None) -> Text:
    if ratio is None:
        return Text("")
    return Text(f"{ratio:.2f}", "bold magenta" if ratio >= HIGHLIGHT_RATIO else "")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def spark_scale(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a sparkline's scale: the values' own, but at least a tenth apart."""
    # So a step of 10 % goes from the lowest mark to the highest, and noise of 1 % is not made to look like one.
    low, high = min(values), max(values)
    return low, max(high, 1.1 * low)


def _spark(values: Sequence[float], low: float, high: float) -> str:
    span = (high - low) or 1.0
    return "".join(SPARKS[max(0, min(7, int(8 * (value - low) / span)))] for value in values)


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="bold underline", padding=(0, 1, 0, 0))
