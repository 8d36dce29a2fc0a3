"""The tables and lines that make up the views: pure functions from a snapshot to what rich can print."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from laggard.resilience.record import wording
from laggard.resilience.record.account import fill_with_launches
from laggard.resilience.record.timeline import LogLine, RecordedVerdict
from laggard.resilience.text import clock
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceState, NodeState, Role, Snapshot, UserMetric
from laggard.telemetry.link_matrix import natural

WIDE = 110  # columns of a terminal that has room for long names of devices
# From this ratio on a probe time is highlighted; whether the device is slow is for the verdicts to say.
HIGHLIGHT_RATIO = 1.1
_INDENT = 18
_ROUTINE = frozenset({"launch", "gap", "state", "telemetry", "report", "logs", "warm", "dump"})
"""First words of lines of the log that only the page of the history shows."""
_SEVERITY = {"suspect": 1, "slow": 2, "very slow": 3, "faulty": 4}
_STYLE: Mapping[Role, str] = {
    "primary": "bold",
    "head-only": "dim",
    "in use": "",
    "reserve": "dim",
    "excluded": "red",
    "waiting": "dim",
}


def _worst(device: DeviceState) -> tuple[float, ...]:
    """Return the place in the order of the worst: devices in use by severity, then excluded ones, then the reserve."""
    if device.role in {"excluded", "reserve"}:
        badness = -1.0 if device.role == "excluded" else -2.0
    else:
        badness = float(_SEVERITY.get(device.verdict.of.severity, 1)) if device.verdict else 0.0
    return -badness, -(device.peer_ratio or 0.0)


def _by_reading(name: str, factor: float = 1.0) -> Callable[[DeviceState], tuple[float, ...]]:
    return lambda device: _last_if_unknown(device.readings.get(name), factor)


def _last_if_unknown(value: float | None, factor: float) -> tuple[float, ...]:
    return (math.inf,) if value is None else (factor * value,)


SORTS: Mapping[str, Callable[[DeviceState], tuple[float, ...]]] = {
    "worst": _worst,
    "name": lambda _: (),
    "utilisation": _by_reading("utilization_percent"),
    "power": _by_reading("power_w"),
    "temperature": _by_reading("temperature_c", -1.0),
    "clock": _by_reading("clock_mhz"),
    "probe": lambda device: _last_if_unknown(device.probe_s, -1.0),
}
"""The orders of devices; those without a reading come last."""


def sorted_devices(devices: Sequence[DeviceState], sort: str) -> list[DeviceState]:
    """Return the devices in an order."""
    key = SORTS[sort]
    return sorted(devices, key=lambda device: (*key(device), natural(device.host), natural(device.gpu)))


def device_table(
    devices: Sequence[DeviceState], width: int, selected: int | None, snapshot: Snapshot
) -> RenderableType:
    """Return a table of some of a job's devices, one line each; ``selected`` is the row to highlight."""
    # A metric that was measured on no device of the job has no column.
    if not snapshot.devices:
        return Text("the nodes of this job have no devices", "dim")
    measured = {name for device in snapshot.devices for name in device.readings}
    columns = [each for each in DEVICE_READINGS if each.name in measured and width >= each.least_width]
    probed = any(device.probe_s is not None for device in snapshot.devices)
    table = _table()
    table.add_column("" if selected is None else " ", width=1)
    table.add_column("device", no_wrap=True, overflow="ellipsis", max_width=32 if width >= WIDE else 20)
    for heading in [*(each.heading for each in columns), *(["probe ms", "x peers"] if probed else [])]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, device in enumerate(devices):
        cells: list[str | Text] = [_number(device.readings.get(each.name), 0) for each in columns]
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
    has_evidence = any(node.evidence for node in nodes)
    evidence = ["evidence"] if has_evidence else []
    for name in ("devices", "load", "cpu %", "memory %", "processes", "verdicts", *evidence):
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
            *([_number(node.evidence or None, 1)] if has_evidence else []),
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
    return fill_with_launches(_table(), snapshot.timeline.launches, snapshot.timeline.began_s, snapshot.taken_s)


def device_details(device: DeviceState, snapshot: Snapshot) -> RenderableType:
    """Return everything that is known about one device."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("device", Text(f"{device.name}  ({device.role})", "bold"))
    if device.model:
        table.add_row("model", Text(device.model))
    for each in DEVICE_READINGS:
        if each.name in device.readings:
            table.add_row(each.label, f"{device.readings[each.name]:,.0f} {each.unit}")
    if device.probe_s is not None:
        ratio = "" if device.peer_ratio is None else f", {device.peer_ratio:.2f} times its peers' median"
        table.add_row("probe time", f"{1000 * device.probe_s:.2f} ms{ratio}")
        ends = (1000 * end(device.probe_history_s) for end in (min, max))
        table.add_row("recent probe times", "{:.2f} to {:.2f} ms".format(*ends))
    verdicts = [verdict for verdict in snapshot.timeline.verdicts if verdict.is_about(device.host, device.gpu)]
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
        if line.what not in _ROUTINE:
            return _log_line(line, snapshot.timeline.began_s)
    return Text("no verdicts so far", "dim")


def _log_line(line: LogLine, began_s: float) -> Text:
    at = clock(line.time_s - began_s)
    return Text.assemble((f"{at:>7} ", "dim"), (f"{line.what:<9} ", "bold"), (line.text, _line_style(line)))


def _line_style(line: LogLine) -> str:
    return "" if line.what in _ROUTINE else "magenta"


def _sentence(verdict: RecordedVerdict, snapshot: Snapshot) -> str:
    at = clock(verdict.time_s - snapshot.timeline.began_s)
    return f"{at} {verdict.of.severity}: {verdict.of.evidence}{wording.likely_cause(verdict.of.cause)}"


def _verdict(device: DeviceState) -> Text:
    if device.role == "excluded":
        return Text("excluded" + (f", {device.verdict.of.severity}" if device.verdict else ""), "red")
    if device.verdict is None:
        return Text("in reserve" if device.role == "reserve" else "", "dim")
    return Text(device.verdict.of.severity, "bold magenta" if device.verdict.of.severity == "suspect" else "bold red")


def _ratio(ratio: float | None) -> Text:
    if ratio is None:
        return Text("")
    return Text(f"{ratio:.2f}", "bold magenta" if ratio >= HIGHLIGHT_RATIO else "")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="bold underline", padding=(0, 1, 0, 0))
