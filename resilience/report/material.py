"""Where a report's material comes from: the folder of a job's record, or dumps of telemetry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from detectors.part import PART, found_by
from kvstore.store import SampleStore
from resilience.record.journal import JOURNAL_FILE, LATEST_S, JournalError, read_journal
from resilience.record.recorder import UTILIZATION
from resilience.record.story import Story, natural, story_of_entries, story_of_events
from resilience.report.page import Material
from resilience.report.panel import Device, Panel, panel_of
from resilience.reserve_probe import METRIC as RESERVE_PROBE
from telemetry.catalogue import CATALOGUE, EVENTS
from telemetry.dump import DumpError, read_dump
from telemetry.events import events_of_series
from telemetry.query.times import ALL_TIME_US, SECOND_US

__all__ = ["read_material"]

MAX_PROBES = 4
_DUMP = "*.csv.gz"
# Too few readings for a picture, and a slow node of the reserve is told of in words.
_NOT_DRAWN = {*CATALOGUE, EVENTS, RESERVE_PROBE}
# In a dump of all telemetry the program's own metrics stand beside the probes.
_PROBE = re.compile(r"probe")


def read_material(path: Path) -> Material:
    """Read the record of a job, or one or several dumps.

    Raises
    ------
    JournalError, DumpError
        If there is nothing to read, or it cannot be read; the message names the file and the way out.
    """
    journal = path / JOURNAL_FILE
    if journal.exists():
        store = read_dump([path]) if any(path.glob(_DUMP)) else None
        entries = read_journal(journal)
        try:
            story = story_of_entries(entries)
        except ValueError as error:
            raise JournalError(f"{journal} is damaged: {error}; name a dump beside it instead") from error
        return _material(story, store, whole=True)
    if path.is_dir() and not any(path.glob(_DUMP)):
        raise DumpError(f"there is no record of a job ({JOURNAL_FILE}) and no dump ({_DUMP}) in {path}: name another")
    store = read_dump([path])
    span = _span_s(store)
    if span is None:
        raise DumpError(f"{path} holds no samples: a dump is made while the job runs, or at its end")
    if not 0 <= span[0] <= span[1] < LATEST_S:
        raise DumpError(f"{path} is damaged: its samples are of the Unix times {span[0]:g} to {span[1]:g}")
    events = events_of_series(store.read([EVENTS], 0, ALL_TIME_US))
    name = path.name.removesuffix(_DUMP[1:])
    return _material(story_of_events(name, events, _devices(store), span), store, whole=False)


def _material(story: Story, store: SampleStore | None, *, whole: bool) -> Material:
    if store is None:
        return Material(story)
    order = [(host, gpu) for host in story.hosts for gpu in story.devices.get(host, ())]
    names = sorted(store.metrics() - _NOT_DRAWN, key=lambda name: _place(name, story))
    probes = (_panel(store, name, order) for name in names if whole or _PROBE.search(name))
    utilization = _panel(store, UTILIZATION, order)
    return Material(story, tuple(panel for panel in probes if panel is not None)[:MAX_PROBES], utilization)


def _place(metric: str, story: Story) -> tuple[bool, bool, bool, str]:
    """Return where to draw a metric: probes first, of them the main one, and then those that something was found by."""
    _, _, part = metric.partition(PART)
    found = any(finding.evidence.endswith(found_by(part)) for finding in story.findings)
    return "probe" not in metric, part != "", not found, metric


def _panel(store: SampleStore, metric: str, order: list[Device]) -> Panel | None:
    series = store.read([metric], 0, ALL_TIME_US, lambda tags: "host" in tags)
    return panel_of(metric, series, order)


def _devices(store: SampleStore) -> dict[str, tuple[str, ...]]:
    pairs = {(tags.get("host", ""), tags.get("gpu", "")) for _, tags in _tags(store)}
    hosts = sorted({host for host, _ in pairs if host}, key=natural)
    return {host: tuple(sorted((gpu for at, gpu in pairs if at == host and gpu), key=natural)) for host in hosts}


def _tags(store: SampleStore) -> Iterable[tuple[str, dict[str, str]]]:
    return ((metric, dict(tags)) for metric, tags in store.series_keys() if metric != EVENTS)


def _span_s(store: SampleStore) -> tuple[float, float] | None:
    oldest_us = store.oldest_us()
    if oldest_us is None:
        return None
    return oldest_us / SECOND_US, max(newest.time_us for newest in store.newest()) / SECOND_US
