"""Reads what a report is made of: the folder of a job's record, or telemetry dumps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from laggard.collectors.probe_metrics import RESERVE_PROBE_TIME
from laggard.resilience.record.journal import JOURNAL_FILE, LATEST_S, read_journal
from laggard.resilience.record.own_metrics import MAX_METRICS
from laggard.resilience.record.recorder import UTILIZATION
from laggard.resilience.record.timeline import Timeline, timeline_of_entries, timeline_of_events
from laggard.telemetry.catalogue import CATALOGUE, EVENTS
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.errors import DumpError
from laggard.telemetry.events import events_of_series
from laggard.telemetry.link_matrix import LinkMatrix, natural
from laggard.telemetry.links import links_between
from laggard.telemetry.nodes.sources import LocalSource
from laggard.telemetry.page.content import is_probe, metrics_of
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.store.history import History

MAX_PROBES = 4
MAX_LINK_LAUNCHES = 20
_DUMP = "*.csv.gz"
# The reserve's probe has too few readings for a figure; a slow reserve node has a line in the log.
_NOT_DRAWN = {*CATALOGUE, EVENTS, RESERVE_PROBE_TIME}


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """What a report is made of: the job's timeline, its probe times, its devices' utilisation, the program's metrics.

    Of the last there are only so many; ``n_left_out`` is the number of the others. ``links`` are those of the newest
    launches, by number, each as it was when the launch ended.
    """

    timeline: Timeline
    store: History | None = None  # all samples; None if there are none
    probes: tuple[str, ...] = ()  # metrics
    has_utilization: bool = False
    own_metrics: tuple[str, ...] = ()
    n_left_out: int = 0
    links: Mapping[int, LinkMatrix] = field(default_factory=dict)

    @property
    def of_devices(self) -> tuple[str, ...]:
        """The metrics that are drawn for each device."""
        return (*self.probes, UTILIZATION) if self.has_utilization else self.probes


def read_inputs(path: Path) -> ReportInputs:
    """Read the record of a job, or one or more dumps."""
    journal = path / JOURNAL_FILE
    if journal.exists():
        store = read_dump([path]) if any(path.glob(_DUMP)) else None
        return _inputs(timeline_of_entries(read_journal(journal)), store, whole=True)
    if path.is_dir() and not any(path.glob(_DUMP)):
        raise DumpError(str(path), f"no job record ({JOURNAL_FILE}) and no dump ({_DUMP}) in it; name another folder")
    store = read_dump([path])
    span = _span_s(store)
    if span is None:
        raise DumpError(str(path), "it has no samples; name another dump")
    if not 0 <= span[0] <= span[1] < LATEST_S:
        raise DumpError(str(path), f"it is damaged: its samples have Unix times from {span[0]:g} to {span[1]:g}")
    events = events_of_series(store.samples.read([EVENTS], 0, ALL_TIME_US))
    name = path.name.removesuffix(_DUMP[1:])
    return _inputs(timeline_of_events(name, events, _devices(store), span), store, whole=False)


def _inputs(timeline: Timeline, store: History | None, *, whole: bool) -> ReportInputs:
    if store is None:
        return ReportInputs(timeline)
    on_hosts = {metric for metric, tags in _tags(store) if "host" in tags}
    names = sorted(on_hosts - _NOT_DRAWN, key=lambda name: ("probe" not in name, name))
    probes = tuple(name for name in names if whole or is_probe(name))[:MAX_PROBES]
    own = [
        each["name"]
        for each in metrics_of(store.series_keys())
        if each["kind"] == "program" and each["name"] not in {*_NOT_DRAWN, *probes}
    ]
    n_left_out = timeline.n_left_out + max(0, len(own) - MAX_METRICS)
    own_metrics = tuple(own[:MAX_METRICS])
    has_utilization = UTILIZATION in on_hosts
    return ReportInputs(timeline, store, probes, has_utilization, own_metrics, n_left_out, _links(store, timeline))


def _links(store: History, timeline: Timeline) -> dict[int, LinkMatrix]:
    found: dict[int, LinkMatrix] = {}
    for launch in reversed(timeline.launches):
        ended_s = timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s
        span = Span(round(launch.began_s * SECOND_US), round(ended_s * SECOND_US))
        matrix = links_between(LocalSource(store), span, {*launch.nodes})
        if matrix is not None and len(found) < MAX_LINK_LAUNCHES:
            found[launch.number] = matrix
    return found


def _devices(store: History) -> dict[str, tuple[str, ...]]:
    pairs = {(tags.get("host", ""), tags.get("gpu", "")) for _, tags in _tags(store)}
    hosts = sorted({host for host, _ in pairs if host}, key=natural)
    return {host: tuple(sorted((gpu for at, gpu in pairs if at == host and gpu), key=natural)) for host in hosts}


def _tags(store: History) -> Iterable[tuple[str, dict[str, str]]]:
    return ((metric, dict(tags)) for metric, tags in store.series_keys() if metric != EVENTS)


def _span_s(store: History) -> tuple[float, float] | None:
    span_us = store.span_us()
    return None if span_us is None else (span_us[0] / SECOND_US, span_us[1] / SECOND_US)
