"""What the tables of the views say: pure functions from a snapshot to columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from laggard.resilience.views.listing import Cell, Column
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceState, NodeState, Role, UserMetric
from laggard.telemetry.link_matrix import natural

# From this ratio on a probe time is highlighted; whether the device is slow is for the verdicts to say.
HIGHLIGHT_RATIO = 1.1
_FULL = 0.9  # from this share on, memory in use is highlighted
_IDLE = 0.1  # below this share, a device or processor counts as idle
_SEVERITY = {"suspect": 1, "slow": 2, "very slow": 3, "faulty": 4}
ROLE_STYLES: Mapping[Role, str] = {
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


def sorted_devices(devices: Iterable[DeviceState], sort: str) -> list[DeviceState]:
    """Return the devices in an order."""
    key = SORTS[sort]
    return sorted(devices, key=lambda device: (*key(device), natural(device.host), natural(device.gpu)))


def device_columns(devices: Sequence[DeviceState]) -> list[Column]:
    """Return the table of devices, one line each."""
    if not devices:
        return [Column("no devices", right=False)]
    names = [Cell(each.name, _verdict(each).style or ROLE_STYLES[each.role], each.name) for each in devices]
    columns = [Column("device", names, right=False, most=32)]
    for rank, of in enumerate(DEVICE_READINGS, 3):
        values = [each.readings.get(of.name) for each in devices]
        columns.append(_shares(of.heading, values, rank) if of.unit == "%" else _numbers(of.heading, values, rank))
    times_ms = [None if each.probe_s is None else 1000 * each.probe_s for each in devices]
    columns += [_numbers("probe ms", times_ms, 2, digits=2), Column("x peers", [_ratio(each) for each in devices], 1)]
    return [*columns, Column("verdict", [_verdict(each) for each in devices], 1, right=False)]


def node_columns(nodes: Sequence[NodeState]) -> list[Column]:
    """Return the table of nodes, one line each."""

    def read(name: str) -> list[float | None]:
        return [node.readings.get(name) for node in nodes]

    names = [Cell(node.host, ROLE_STYLES[node.role], node.host) for node in nodes]
    return [
        Column("node", names, right=False, most=32),
        Column("role", [Cell(node.role, ROLE_STYLES[node.role]) for node in nodes], 5, right=False),
        _numbers("devices", [node.devices for node in nodes], 7),
        _numbers("load", read("load_average"), 8, digits=1),
        _shares("cpu %", read("cpu_percent"), 1),
        _shares("memory %", read("memory_percent"), 2, is_memory=True),
        _rates("net MB/s", list(map(_traffic, nodes)), 3),
        _numbers("processes", read("processes"), 9),
        _numbers("verdicts", [node.verdicts or None for node in nodes], 6),
        _numbers("evidence", [node.evidence or None for node in nodes], 6, digits=1),
    ]


def _traffic(node: NodeState) -> float | None:
    """Return what a node sends and receives, in bytes per second."""
    rates = [node.readings[name] for name in ("receive_bytes_per_s", "transmit_bytes_per_s") if name in node.readings]
    return sum(rates) if rates else None


def metric_columns(metrics: Sequence[UserMetric], level: int) -> list[Column]:
    """Return the table of the program's own metrics, one line each."""
    if not metrics:
        why = "run with --telemetry-level=1 or higher" if level == 0 else "the program has sent none recently"
        return [Column(f"no program metrics: {why}", right=False)]

    def column(heading: str, values: Iterable[float], rank: int) -> Column:
        return Column(heading, [Cell(f"{value:.4g}") for value in values], rank)

    return [
        Column("metric", [Cell(each.name, name=each.name) for each in metrics], right=False, most=60),
        column("series", (each.series for each in metrics), 3),
        column("lowest", (each.low for each in metrics), 2),
        column("mean", (each.mean for each in metrics), 1),
        column("highest", (each.high for each in metrics), 2),
    ]


def _numbers(heading: str, values: Iterable[float | None], rank: int, *, digits: int = 0) -> Column:
    return Column(heading, [Cell("" if value is None else f"{value:,.{digits}f}") for value in values], rank)


def _shares(heading: str, percents: Sequence[float | None], rank: int, *, is_memory: bool = False) -> Column:
    """Return percentages with bars: an idle device or processor is dim, and memory that is nearly full is red."""
    shares = [None if percent is None else percent / 100 for percent in percents]
    cells = []
    for percent, share in zip(percents, shares, strict=True):
        style = "dim" if share is None or (share < _IDLE and not is_memory) else "green"
        style = "bold red" if is_memory and share is not None and share >= _FULL else style
        cells.append(Cell("" if percent is None else f"{percent:,.0f}", style))
    return Column(heading, cells, rank, shares=shares)


def _rates(heading: str, values: Sequence[float | None], rank: int) -> Column:
    """Return bytes per second with bars, the longest for the highest."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    cells = [Cell("" if value is None else f"{value / 1e6:,.1f}", "green") for value in values]
    return Column(heading, cells, rank, shares=[None if value is None else value / most for value in values])


def _verdict(device: DeviceState) -> Cell:
    if device.role == "excluded":
        return Cell("excluded" + (f", {device.verdict.of.severity}" if device.verdict else ""), "red")
    if device.verdict is None:
        return Cell("in reserve", "dim") if device.role == "reserve" else Cell("")
    return Cell(device.verdict.of.severity, "bold magenta" if device.verdict.of.severity == "suspect" else "bold red")


def _ratio(device: DeviceState) -> Cell:
    if device.peer_ratio is None:
        return Cell("")
    return Cell(f"{device.peer_ratio:.2f}", "bold magenta" if device.peer_ratio >= HIGHLIGHT_RATIO else "")


def against_peers(ratio: float) -> str:
    """Return in words how a probe time compares with that of the peers."""
    percent = 100 * (ratio - 1)
    if ratio >= 3:
        return f"{ratio:.1f} times as slow as its peers"
    if abs(percent) < 0.5:
        return "as fast as its peers"
    return f"{abs(percent):.0f} % {'slower' if percent > 0 else 'faster'} than its peers"
