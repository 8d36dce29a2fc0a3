"""Events, shown as annotations on graphs. There are few, so they are stored in the state server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.node_names import joined, parted
from laggard.records import plain, record_of
from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.course import JobBegan, LaunchProgressed
from laggard.telemetry.sharing import SharedCall

STREAM = "telemetry-events"
JOURNAL = "journal"
"""The stream of the controller's record of the job, many of whose entries are events."""
MAX_EVENTS = 10_000
MAX_TEXT = 500
_LISTS = ("nodes", "reserve")
_TEXTS = ("kind", "text", "host", "gpu", "severity", "cause", "action")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one time, for example a verdict; its words are made last."""

    time_us: int  # Unix time in microseconds
    kind: str  # `launch`, `launch-end`, `verdict`, `failure`, `xid`, `notice` or `request`
    # What happened, of a verdict the evidence, of the end of a launch the reason; empty if other fields say it all
    text: str = ""
    host: str = ""  # the node and device it is about; empty if it is about none in particular
    gpu: str = ""
    launch: int | None = None  # of a launch and its end: its number
    nodes: tuple[str, ...] = ()  # of a launch: its nodes, and those in reserve
    reserve: tuple[str, ...] = ()
    # Of a verdict; without a cause that is known, that is empty
    severity: str = ""
    cause: str = ""
    action: str = ""


class EventLog:
    """A job's events: those of the log, and those of the job's record."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint) -> None:
        self._client = client  # the job's state server
        self._endpoint = endpoint
        self._all = SharedCall(self._read_all)
        self._known: deque[Event] = deque(maxlen=2 * MAX_EVENTS)
        self._last_ids = {STREAM: "-", JOURNAL: "-"}
        self.job = ""
        # Unix time of the last progress; None until there was some, and until events have been read
        self.progress_s: float | None = None

    def add(self, event: Event) -> None:
        """Write one event."""
        text = json.dumps(plain(replace(event, text=event.text[:MAX_TEXT])))
        self._client.xadd(self._endpoint.key(STREAM), {"event": text}, maxlen=MAX_EVENTS, approximate=True)

    def between(self, start_us: int, end_us: int) -> list[Event]:
        """Return the events in a time range, both ends included, in order."""
        return [event for event in self._all() if start_us <= event.time_us <= end_us]

    def _read_all(self) -> list[Event]:
        logged, entries = self._read_new()
        self._known.extend(record_of(Event, json.loads(fields[b"event"])) for _, fields in logged)
        for _, fields in entries:
            self._take_entry(json.loads(fields[b"entry"]))
        return sorted(self._known, key=lambda event: event.time_us)

    def _take_entry(self, entry: Mapping[str, Any]) -> None:
        """Take an entry of the job's record: what it says of the course, and the event that it is shown as."""
        match entry["is"]:
            case "JobBegan":  # what was before is of an earlier job, whose state this one resumes
                self.job, self.progress_s = record_of(JobBegan, entry).name, None
                began_us = round(entry["time_s"] * 1_000_000)
                self._known = deque((each for each in self._known if each.time_us >= began_us), self._known.maxlen)
            case "LaunchProgressed":
                progress = record_of(LaunchProgressed, entry).progress
                if progress.commits or progress.step is not None:
                    self.progress_s = progress.time_s
        # An entry whose acknowledgement was lost is stored twice.
        if (shown := entry.get("shown")) is not None and (event := record_of(Event, shown)) not in self._known:
            self._known.append(event)

    def _read_new(self) -> list[list[Any]]:
        """Return what was written to each stream since it was last read: every query asks for events."""
        with self._client.pipeline(transaction=False) as pipeline:
            for stream, last_id in self._last_ids.items():
                after = last_id if last_id == "-" else f"({last_id}"
                pipeline.xrange(self._endpoint.key(stream), after, count=MAX_EVENTS)
            new = cast("list[list[Any]]", pipeline.execute())
        for stream, entries in zip(self._last_ids, new, strict=True):
            if entries:
                self._last_ids[stream] = entries[-1][0].decode()
        return new


def series_of_events(events: Iterable[Event]) -> list[TimeSeries]:
    """Return events as series, for a dump."""
    one = np.ones(1)
    return [TimeSeries(EVENTS, _tags(event), np.array([event.time_us], dtype=np.int64), one) for event in events]


def keys_of_events(events: Iterable[Event]) -> set[SeriesKey]:
    """Return the keys of these events as series, by what is of use in a filter."""
    kept = "kind", "host", "gpu"
    return {key_of(EVENTS, {name: value for name, value in _tags(event).items() if name in kept}) for event in events}


def events_of_series(series: Iterable[TimeSeries]) -> list[Event]:
    """Return the events that :func:`series_of_events` turned into series."""
    events = [_event(time_us, each.tags) for each in series for time_us in each.times_us.tolist()]
    return sorted(events, key=lambda event: event.time_us)


def _tags(event: Event) -> Mapping[str, str]:
    tags = {name: getattr(event, name) for name in _TEXTS} | {name: joined(getattr(event, name)) for name in _LISTS}
    tags["launch"] = "" if event.launch is None else str(event.launch)
    return {key: value for key, value in tags.items() if value}


def _event(time_us: int, tags: Mapping[str, str]) -> Event:
    texts: dict[str, Any] = {name: tags.get(name, "") for name in _TEXTS}
    launch = tags.get("launch", "")
    lists: dict[str, Any] = {name: tuple(parted(tags.get(name, ""))) for name in _LISTS}
    return Event(time_us, launch=int(launch) if launch.isdecimal() else None, **texts, **lists)
