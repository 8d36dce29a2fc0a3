"""The status of a job at one moment: what the views show. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from laggard.collectors.device import DeviceId
from laggard.records import plain
from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.decision.failure import Failure
from laggard.resilience.record import wording
from laggard.resilience.record.effective_time import EffectiveTime, effective_time
from laggard.resilience.record.timeline import Launch, RecordedFailure, RecordedVerdict, Timeline
from laggard.resilience.text import printable
from laggard.telemetry.link_matrix import natural
from laggard.telemetry.page.content import ratios_to_peers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Role = Literal["primary", "head-only", "in use", "reserve", "excluded", "waiting"]


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A metric of telemetry level 3, and what it is called."""

    metric: str
    name: str  # in a snapshot
    label: str  # in words
    unit: str
    heading: str  # of its column


DEVICE_READINGS = (
    DeviceReading("DeviceUtilization", "utilization_percent", "utilisation", "%", "util %"),
    DeviceReading("DevicePowerUsage", "power_w", "power", "W", "power W"),
    DeviceReading("DeviceTemperature", "temperature_c", "temperature", "°C", "°C"),
    DeviceReading("DeviceSmClock", "clock_mhz", "clock", "MHz", "MHz"),
    DeviceReading("DeviceMemoryUtilization", "memory_percent", "memory", "%", "memory %"),
)
NODE_READINGS: Mapping[str, str] = {
    "load_average": "load_average",
    "cpu_percent": "cpu_percent",
    "used_RAM": "memory_percent",
    "num_running_processes": "processes",
    "network_receive": "receive_bytes_per_s",
    "network_transmit": "transmit_bytes_per_s",
}
"""Metrics of telemetry level 2, and their names in a snapshot."""
RATES = frozenset({"network_receive", "network_transmit"})
"""Those that count from the start of the node, of which the increase per second is shown."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device. None: not measured.

    Attributes
    ----------
    host, gpu, model
        Which device; ``model`` is empty if unknown.
    role
        Role of its node.
    readings
        Newest values by the names of `DEVICE_READINGS`.
    probe_s
        Newest probe time, in seconds.
    peer_ratio
        The newest probe time over the median of the devices of its model in use: 1.2 is 20 % slower.
    verdict
        The newest verdict against it, or against its whole node.
    probe_history_s
        Recent probe times, oldest first.
    """

    host: str
    gpu: str
    model: str
    role: Role
    readings: Mapping[str, float]
    probe_s: float | None = None
    peer_ratio: float | None = None
    verdict: RecordedVerdict | None = None
    probe_history_s: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Host and GPU."""
        return f"{self.host} gpu {self.gpu}"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: its newest readings by the names of ``NODE_READINGS``, and the evidence of the ledger against it."""

    host: str
    role: Role
    devices: int
    readings: Mapping[str, float]
    verdicts: int
    evidence: float = 0.0


@dataclass(frozen=True, slots=True)
class UserMetric:
    """One of the program's own metrics: lowest, mean and highest of the newest values of its series."""

    name: str
    series: int
    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class Readings:
    """Recent telemetry, before it is combined with the job's timeline."""

    # Newest values by device or host, then by metric
    devices: Mapping[DeviceId, Mapping[str, float]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # Recent probe times of each device, in seconds, oldest first
    probes: Mapping[DeviceId, Sequence[float]] = field(default_factory=dict)
    models: Mapping[DeviceId, str] = field(default_factory=dict)  # model of each device
    # Newest values of the program's own metrics, by name
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    missing: Sequence[str] = ()  # nodes that did not answer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job at one moment; ``taken_s`` is its Unix time."""

    taken_s: float
    timeline: Timeline
    level: int
    port: int
    nodes: tuple[NodeState, ...]
    devices: tuple[DeviceState, ...]
    metrics: tuple[UserMetric, ...]
    missing: tuple[str, ...] = ()

    @property
    def times(self) -> EffectiveTime:
        """Where the job's time has gone so far."""
        return effective_time(self.timeline, self.taken_s)

    def n_nodes(self, role: Role) -> int:
        """Return how many nodes have a role."""
        return sum(node.role == role for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``laggard status --json`` prints; ``null`` stands for unknown, times are Unix times."""
        timeline = self.timeline
        return {
            "format": 1,
            "job": timeline.name,
            "command": timeline.command,
            "machine": timeline.machine,
            "began_s": timeline.began_s,
            "taken_s": self.taken_s,
            "telemetry": {"level": self.level, "port": self.port if self.level else None},
            "launches": [_launch_fields(launch) for launch in timeline.launches],
            "effective_time": self._times_fields(),
            "verdicts": list(map(_verdict_fields, timeline.verdicts)),
            "failures": [_failure_fields(failure) for failure in timeline.failures],
            "nodes": [_fields(node, verdicts="findings") for node in self.nodes],
            "devices": list(map(_device_fields, self.devices)),
            "metrics": [_fields(metric) for metric in self.metrics],
            "missing_nodes": list(self.missing),
        }

    def _times_fields(self) -> dict[str, Any]:
        times = self.times
        launches = [dict(parts.by_name()) for parts in times.launches]
        fields = {"ratio": times.ratio, "basis": times.basis, "total_s": times.total_s}
        return fields | dict(times.parts.by_name()) | {"launches": launches}


def compose(timeline: Timeline, readings: Readings, taken_s: float, *, level: int, port: int) -> Snapshot:
    """Combine a job's timeline with its recent telemetry."""
    roles = _roles(timeline)
    hosts = sorted(roles, key=lambda host: (_ORDER.index(roles[host]), natural(host)))
    verdicts = _newest_verdicts(timeline)
    in_use = [(host, gpu) for host in hosts if roles[host] in _IN_USE for gpu in timeline.devices.get(host, ())]
    ratios = _peer_ratios(in_use, readings)
    devices = tuple(
        DeviceState(
            host,
            gpu,
            printable(readings.models.get((host, gpu), "")),
            roles[host],
            _named({each.metric: each.name for each in DEVICE_READINGS}, readings.devices.get((host, gpu), {})),
            _last(readings.probes.get((host, gpu), ())),
            ratios.get((host, gpu)),
            verdicts.get((host, gpu)) or verdicts.get((host, "")),
            tuple(readings.probes.get((host, gpu), ())),
        )
        for host in hosts
        for gpu in sorted(timeline.devices.get(host, ()), key=natural)
    )
    evidence = timeline.evidence
    nodes = tuple(
        NodeState(
            host,
            roles[host],
            len(timeline.devices.get(host, ())),
            _named(NODE_READINGS, readings.nodes.get(host, {})),
            sum(verdict.of.host == host and not verdict.is_over for verdict in timeline.verdicts),
            evidence[host].value if host in evidence else 0.0,
        )
        for host in hosts
    )
    metrics = tuple(
        UserMetric(printable(name), len(values), min(values), sum(values) / len(values), max(values))
        for name, values in sorted(readings.metrics.items())
        if values
    )
    missing = tuple(map(printable, readings.missing))
    return Snapshot(taken_s, timeline, level, port, nodes, devices, metrics, missing)


# The nodes that a user looks for come first.
_ORDER: tuple[Role, ...] = ("excluded", "primary", "head-only", "in use", "reserve", "waiting")
_IN_USE = ("primary", "in use")


def _roles(timeline: Timeline) -> dict[str, Role]:
    roles: dict[str, Role] = dict.fromkeys(timeline.hosts, "excluded")
    if not timeline.launches:
        return dict.fromkeys(timeline.hosts, "waiting")
    newest = timeline.launches[-1]
    roles |= dict.fromkeys(newest.reserve, "reserve")
    roles |= dict.fromkeys(newest.nodes, "in use")
    primary = newest.primary or newest.nodes[0]
    return roles | {primary: "primary" if primary in newest.nodes else "head-only"}


def _newest_verdicts(timeline: Timeline) -> dict[DeviceId, RecordedVerdict]:
    newest: dict[DeviceId, RecordedVerdict] = {}
    for verdict in timeline.verdicts:
        newest[verdict.of.host, verdict.of.gpu or ""] = verdict
        if verdict.is_over:
            newest = {device: each for device, each in newest.items() if not verdict.is_about(*device)}
    return newest


def _peer_ratios(in_use: Iterable[DeviceId], readings: Readings) -> dict[DeviceId, float]:
    probed = [device for device in in_use if _last(readings.probes.get(device, ())) is not None]
    newest = np.array([readings.probes[device][-1] for device in probed])
    ratios = ratios_to_peers(newest, [readings.models.get(device, "") for device in probed])
    return {device: ratio for device, ratio in zip(probed, ratios.tolist(), strict=True) if math.isfinite(ratio)}


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values and math.isfinite(values[-1]) else None


def _named(names: Mapping[str, str], values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[metric] for metric, name in names.items() if metric in values}


def _fields(record: DataclassInstance, **keys: str) -> dict[str, Any]:
    """Return a record's fields as JSON values; ``keys`` names those whose key in the JSON differs."""
    # The JSON's keys are an interface that other programs read, so they do not follow our names.
    fields = plain(asdict(record))
    if fields.get("role") == "excluded":
        fields["role"] = "left out"
    return {keys.get(name, name): value for name, value in fields.items()}


def _launch_fields(launch: Launch) -> dict[str, Any]:
    fields = _fields(launch, excluded="left_out")
    del fields["progress"]  # what follows from it is in the effective time
    return fields | {"why": decision_wording.reason(launch.why)}


def _verdict_fields(verdict: RecordedVerdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    of = verdict.of
    words = {"evidence": str(of.evidence), "cause": str(of.cause) if of.cause.is_known else ""}
    against = {"time_s": verdict.time_s, "host": of.host, "gpu": of.gpu, "slowdown": plain(of.slowdown)}
    return {**against, "severity": of.severity, **words, "action": of.action}


def _device_fields(device: DeviceState) -> dict[str, Any]:
    fields = _fields(replace(device, verdict=None), peer_ratio="against_peers", verdict="finding")
    return fields | {"finding": _verdict_fields(device.verdict)}


def _failure_fields(failure: RecordedFailure) -> dict[str, Any]:
    of = failure.of
    rank, exit_code, cause = (of.rank, of.exit_code, of.cause) if isinstance(of, Failure) else (None, None, "")
    words = {"sentence": wording.failure(failure), "stacks": failure.stacks, "cause": cause}
    found = {"time_s": failure.time_s, "host": failure.host, "rank": rank, "exit_code": exit_code}
    return found | {"kind": failure.kind} | words
