"""Reads what a report is made of: the folder of a job's record, or telemetry dumps."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from laggard.collectors.device import DeviceId
from laggard.collectors.probe_metrics import RESERVE_PROBE_TIME
from laggard.resilience.record.journal import JOURNAL_FILE, LATEST_S, read_journal
from laggard.resilience.record.own_metrics import MAX_METRICS
from laggard.resilience.record.recorder import UTILIZATION
from laggard.resilience.record.timeline import Timeline, timeline_of_entries, timeline_of_events
from laggard.resilience.report.own_curve import OwnCurve, own_curve
from laggard.resilience.report.panel import Panel, panel_of
from laggard.telemetry.catalogue import CATALOGUE, EVENTS
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.errors import DumpError
from laggard.telemetry.events import events_of_series
from laggard.telemetry.link_matrix import LinkMatrix, natural
from laggard.telemetry.links import links_between
from laggard.telemetry.nodes.sources import LocalSource
from laggard.telemetry.page.content import metrics_of
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.store.history import History

MAX_PROBES = 4
MAX_LINK_LAUNCHES = 20
_DUMP = "*.csv.gz"
# The reserve's probe has too few readings for a figure; a slow reserve node has a line in the log.
_NOT_DRAWN = {*CATALOGUE, EVENTS, RESERVE_PROBE_TIME}
# A dump of all telemetry also holds the program's own metrics.
_PROBE = re.compile(r"probe")


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """What a report is made of: the job's timeline, its probe times, its devices' utilisation, the program's metrics.

    Of the last there are only so many; ``n_left_out`` is the number of the others. ``links`` are those of the newest
    launches, by number, each as it was when the launch ended.
    """

    timeline: Timeline
    probes: tuple[Panel, ...] = ()
    utilization: Panel | None = None
    own_curves: tuple[OwnCurve, ...] = ()
    n_left_out: int = 0
    links: Mapping[int, LinkMatrix] = field(default_factory=dict)


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
    events = events_of_series(store.read([EVENTS], 0, ALL_TIME_US))
    name = path.name.removesuffix(_DUMP[1:])
    return _inputs(timeline_of_events(name, events, _devices(store), span), store, whole=False)


def _inputs(timeline: Timeline, store: History | None, *, whole: bool) -> ReportInputs:
    if store is None:
        return ReportInputs(timeline)
    order = [(host, gpu) for host in timeline.hosts for gpu in timeline.devices.get(host, ())]
    names = sorted(store.metrics() - _NOT_DRAWN, key=lambda name: ("probe" not in name, name))
    found = (_panel(store, name, order) for name in names if whole or _PROBE.search(name))
    probes = tuple(panel for panel in found if panel is not None)[:MAX_PROBES]
    own = _own_names(store, {panel.metric for panel in probes})
    curves = (own_curve(name, list(store.read([name], 0, ALL_TIME_US))) for name in own[:MAX_METRICS])
    n_left_out = timeline.n_left_out + max(0, len(own) - MAX_METRICS)
    utilization = _panel(store, UTILIZATION, order)
    own_curves = tuple(each for each in curves if each is not None)
    return ReportInputs(timeline, probes, utilization, own_curves, n_left_out, _links(store, timeline))


def _links(store: History, timeline: Timeline) -> dict[int, LinkMatrix]:
    found: dict[int, LinkMatrix] = {}
    for launch in reversed(timeline.launches):
        ended_s = timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s
        span = Span(round(launch.began_s * SECOND_US), round(ended_s * SECOND_US))
        matrix = links_between(LocalSource(store), span, {*launch.nodes})
        if matrix is not None and len(found) < MAX_LINK_LAUNCHES:
            found[launch.number] = matrix
    return found


def _own_names(store: History, drawn: Collection[str]) -> list[str]:
    return [
        each["name"]
        for each in metrics_of(store.series_keys())
        if each["kind"] == "program" and each["name"] not in _NOT_DRAWN and each["name"] not in drawn
    ]


def _panel(store: History, metric: str, order: list[DeviceId]) -> Panel | None:
    series = store.read([metric], 0, ALL_TIME_US, lambda tags: "host" in tags)
    return panel_of(metric, series, order)


def _devices(store: History) -> dict[str, tuple[str, ...]]:
    pairs = {(tags.get("host", ""), tags.get("gpu", "")) for _, tags in _tags(store)}
    hosts = sorted({host for host, _ in pairs if host}, key=natural)
    return {host: tuple(sorted((gpu for at, gpu in pairs if at == host and gpu), key=natural)) for host in hosts}


def _tags(store: History) -> Iterable[tuple[str, dict[str, str]]]:
    return ((metric, dict(tags)) for metric, tags in store.series_keys() if metric != EVENTS)


def _span_s(store: History) -> tuple[float, float] | None:
    span_us = store.span_us()
    return None if span_us is None else (span_us[0] / SECOND_US, span_us[1] / SECOND_US)
