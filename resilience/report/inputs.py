"""Reads what a report is made of: the folder of a job's record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laggard.collectors.device import VirtualDevice
from laggard.collectors.probe_metrics import RESERVE_PROBE_TIME
from laggard.resilience.record.error_log import read_error_lines
from laggard.resilience.record.journal import JOURNAL_FILE, read_journal
from laggard.resilience.record.recorder import UTILIZATION
from laggard.resilience.record.timeline import Timeline, timeline_of_entries
from laggard.telemetry.catalogue import CATALOGUE, EVENTS
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.error_lines import ErrorLine
from laggard.telemetry.link_matrix import LinkMatrix
from laggard.telemetry.links import links_between
from laggard.telemetry.nodes.sources import LocalSource
from laggard.telemetry.page.content import is_probe, metrics_of
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.history import History
from laggard.telemetry.store.program_metrics import OF_NODES

MAX_PROBES = 4
MAX_LINK_LAUNCHES = 20
# The reserve's probe has too few readings for a figure; a slow reserve node has a line in the log.
_NOT_DRAWN = {*CATALOGUE, EVENTS, RESERVE_PROBE_TIME}


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """What a report is made of: the job's timeline, its devices' readings, and the program's and the nodes' metrics.

    ``links`` are those of the newest launches, by number, each as it was when the launch ended.
    """

    timeline: Timeline
    store: History | None = None  # all samples; None if there are none
    probes: tuple[str, ...] = ()  # metrics
    has_utilization: bool = False
    has_virtual_devices: bool = False
    own_metrics: tuple[str, ...] = ()
    of_nodes: tuple[str, ...] = ()
    links: Mapping[int, LinkMatrix] = field(default_factory=dict)
    error_lines: Sequence[ErrorLine] = ()

    @property
    def of_devices(self) -> tuple[str, ...]:
        """The metrics that are drawn for each device, or each node."""
        return (*self.probes, *((UTILIZATION,) if self.has_utilization else ()), *self.of_nodes)


def read_inputs(path: Path) -> ReportInputs:
    """Read the record of a job."""
    timeline = timeline_of_entries(read_journal(path / JOURNAL_FILE))
    store = read_dump([path]) if any(path.glob("*.csv.gz")) else None
    if store is None:
        return ReportInputs(timeline, error_lines=read_error_lines(path))
    of_devices = {
        metric
        for metric, tags in store.series_keys()
        if "host" in (known := dict(tags)) and ("gpu" in known or is_probe(metric))
    }
    names = sorted(of_devices - _NOT_DRAWN, key=lambda name: (not is_probe(name), name))
    probes = tuple(names[:MAX_PROBES])
    own_metrics = tuple(
        each["name"]
        for each in metrics_of(store.series_keys())
        if each["kind"] == "program" and each["name"] not in {*_NOT_DRAWN, *probes}
    )
    is_virtual = any(dict(tags).get("model") == VirtualDevice.model for _, tags in store.series_keys())
    return ReportInputs(
        timeline,
        store,
        probes,
        UTILIZATION in of_devices,
        is_virtual,
        own_metrics,
        tuple(name for name in OF_NODES if any(metric == name for metric, _ in store.series_keys())),
        _links(store, timeline),
        read_error_lines(path),
    )


def _links(store: History, timeline: Timeline) -> dict[int, LinkMatrix]:
    found: dict[int, LinkMatrix] = {}
    for launch in reversed(timeline.launches):
        ended_s = timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s
        span = Span(round(launch.began_s * SECOND_US), round(ended_s * SECOND_US))
        matrix, _ = links_between(LocalSource(store), span, {*launch.nodes})
        if matrix is not None and len(found) < MAX_LINK_LAUNCHES:
            found[launch.number] = matrix
    return found
