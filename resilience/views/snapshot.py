"""How a job stands at one moment: what its views show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

from resilience.record.story import Finding, Story, natural
from resilience.record.words import printable

__all__ = ["DEVICE_READINGS", "DeviceState", "NodeState", "Readings", "Role", "Snapshot", "UserMetric", "compose"]

Role = Literal["primary", "in use", "reserve", "left out", "waiting"]
Device = tuple[str, str]

DEVICE_READINGS: Mapping[str, str] = {
    "DeviceUtilization": "utilization_percent",
    "DevicePowerUsage": "power_w",
    "DeviceTemperature": "temperature_c",
    "DeviceSmClock": "clock_mhz",
    "DeviceMemoryUtilization": "memory_percent",
}
"""Metrics of telemetry level 3, and what they are called here."""
NODE_READINGS: Mapping[str, str] = {
    "load_average": "load_average",
    "cpu_percent": "cpu_percent",
    "used_RAM": "memory_percent",
    "num_running_processes": "processes",
}
"""Metrics of telemetry level 2, and what they are called here."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device. What was not measured is None.

    Attributes
    ----------
    host, gpu, model
        Which one; ``model`` is empty where it is not known.
    role
        Of its node.
    readings
        Newest values by the names of ``DEVICE_READINGS``.
    probe_s
        Newest probe time, in seconds.
    against_peers
        That over the median of the other devices in use of its model: 1.2 is 20 % slower.
    finding
        The newest verdict against it, or against its whole node.
    probe_history_s, utilization_history
        What was read lately, oldest first.
    """

    host: str
    gpu: str
    model: str
    role: Role
    readings: Mapping[str, float]
    probe_s: float | None = None
    against_peers: float | None = None
    finding: Finding | None = None
    probe_history_s: tuple[float, ...] = ()
    utilization_history: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Host and GPU."""
        return f"{self.host} gpu {self.gpu}"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: its role, how many devices it has, its newest readings by the names of ``NODE_READINGS``."""

    host: str
    role: Role
    devices: int
    readings: Mapping[str, float]
    findings: int = 0


@dataclass(frozen=True, slots=True)
class UserMetric:
    """One of the program's own metrics: the newest value of each of its series, summed up."""

    name: str
    series: int
    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured lately, before it is put together with what happened.

    Attributes
    ----------
    devices, nodes
        Newest values by device or host, then by metric.
    probes
        The lately read probe times of each device, in seconds, oldest first.
    models
        By device.
    utilization
        Of each device, lately, oldest first.
    metrics
        The program's own: newest values by name.
    missing
        Nodes that did not answer.
    """

    devices: Mapping[Device, Mapping[str, float]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    probes: Mapping[Device, Sequence[float]] = field(default_factory=dict)
    models: Mapping[Device, str] = field(default_factory=dict)
    utilization: Mapping[Device, Sequence[float]] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job at one moment, ``taken_s`` in Unix time."""

    taken_s: float
    story: Story
    level: int
    port: int
    nodes: tuple[NodeState, ...]
    devices: tuple[DeviceState, ...]
    metrics: tuple[UserMetric, ...]
    missing: tuple[str, ...] = ()

    def of(self, *roles: Role) -> list[NodeState]:
        """Return the nodes of some roles."""
        return [node for node in self.nodes if node.role in roles]

    def to_json(self) -> dict[str, Any]:
        """Return what ``laggard status --json`` prints; ``null`` is what is not known, times are Unix times."""
        story = self.story
        return {
            "format": 1,
            "job": story.name,
            "command": story.command,
            "machine": story.machine,
            "began_s": story.began_s,
            "taken_s": self.taken_s,
            "telemetry": {"level": self.level, "port": self.port if self.level else None},
            "launches": [_plain(asdict(launch)) for launch in story.launches],
            "verdicts": [_plain(asdict(finding)) for finding in story.findings],
            "nodes": [_plain(asdict(node)) for node in self.nodes],
            "devices": [_plain(asdict(device)) for device in self.devices],
            "metrics": [_plain(asdict(metric)) for metric in self.metrics],
            "missing_nodes": list(self.missing),
        }


def compose(story: Story, readings: Readings, taken_s: float, *, level: int, port: int) -> Snapshot:
    """Put a snapshot together."""
    roles = _roles(story)
    hosts = sorted(roles, key=lambda host: (_ORDER.index(roles[host]), natural(host)))
    findings = _newest_findings(story)
    in_use = [(host, gpu) for host in hosts if roles[host] in _IN_USE for gpu in story.devices.get(host, ())]
    against = _against_peers(in_use, readings)
    devices = tuple(
        DeviceState(
            host,
            gpu,
            readings.models.get((host, gpu), ""),
            roles[host],
            _named(DEVICE_READINGS, readings.devices.get((host, gpu), {})),
            _last(readings.probes.get((host, gpu), ())),
            against.get((host, gpu)),
            findings.get((host, gpu)) or findings.get((host, "")),
            tuple(readings.probes.get((host, gpu), ())),
            tuple(readings.utilization.get((host, gpu), ())),
        )
        for host in hosts
        for gpu in sorted(story.devices.get(host, ()), key=natural)
    )
    nodes = tuple(
        NodeState(
            host,
            roles[host],
            len(story.devices.get(host, ())),
            _named(NODE_READINGS, readings.nodes.get(host, {})),
            sum(finding.host == host for finding in story.findings),
        )
        for host in hosts
    )
    metrics = tuple(
        UserMetric(printable(name), len(values), min(values), sum(values) / len(values), max(values))
        for name, values in sorted(readings.metrics.items())
        if values
    )
    return Snapshot(taken_s, story, level, port, nodes, devices, metrics, tuple(readings.missing))


# What somebody looks for comes first.
_ORDER: tuple[Role, ...] = ("left out", "primary", "in use", "reserve", "waiting")
_IN_USE = ("primary", "in use")


def _roles(story: Story) -> dict[str, Role]:
    roles: dict[str, Role] = dict.fromkeys(story.hosts, "left out")
    if not story.launches:
        return dict.fromkeys(story.hosts, "waiting")
    newest = story.launches[-1]
    roles |= dict.fromkeys(newest.reserve, "reserve")
    roles |= dict.fromkeys(newest.nodes, "in use")
    return roles | {newest.nodes[0]: "primary"}


def _newest_findings(story: Story) -> dict[Device, Finding]:
    return {(finding.host, finding.gpu or ""): finding for finding in story.findings}


def _against_peers(in_use: Iterable[Device], readings: Readings) -> dict[Device, float]:
    newest: dict[str, dict[Device, float]] = {}
    for device in in_use:
        if (seconds := _last(readings.probes.get(device, ()))) is not None:
            newest.setdefault(readings.models.get(device, ""), {})[device] = seconds
    against: dict[Device, float] = {}
    for model in newest.values():
        if len(model) > 1 and (reference := median(model.values())) > 0:
            against |= {device: seconds / reference for device, seconds in model.items()}
    return against


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values and math.isfinite(values[-1]) else None


def _named(names: Mapping[str, str], values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[metric] for metric, name in names.items() if metric in values}


def _plain(value: Any) -> Any:
    """Return a value with None for numbers that JSON cannot say."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
