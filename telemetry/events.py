"""Events, shown as annotations on graphs. There are few, so they are stored in the state server."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.catalogue import EVENTS

__all__ = ["Event", "EventLog", "EventSource", "LaunchSpan", "events_of_series", "keys_of_events", "series_of_events"]

STREAM = "telemetry-events"
REQUESTS = "requests"
"""The stream of requests to the controller (:mod:`laggard.kvstore.control`)."""
JOURNAL = "journal"
"""The stream of the controller's record of the job, some of whose entries are events."""
MAX_EVENTS = 10_000
MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one time, for example a verdict.

    Attributes
    ----------
    time_us
        Unix time in microseconds.
    kind
        ``launch``, ``launch-end``, ``verdict``, ``failure``, ``xid``, ``notice`` or ``request``.
    text
        One sentence.
    host, gpu
        The node and device it is about; empty if it is about none in particular.
    """

    time_us: int
    kind: str
    text: str
    host: str = ""
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class LaunchSpan:
    """What one launch ran on, and when.

    Attributes
    ----------
    number
        The launch's number.
    nodes, reserve
        Host names; the primary comes first.
    began_us, ended_us
        Unix times in microseconds; ``ended_us`` is None if it runs, or if nobody saw its end.
    """

    number: int
    nodes: tuple[str, ...]
    reserve: tuple[str, ...]
    began_us: int
    ended_us: int | None = None


class EventSource(Protocol):
    """Provides events.

    Attributes
    ----------
    launches
        The launches so far, as far as they are known.
    """

    launches: list[LaunchSpan]

    def between(self, start_us: int, end_us: int) -> list[Event]:
        """Return the events in a time range, both ends included, in order."""


class EventLog:
    """A job's events: those of the log, of the job's record, and the requests of detectors and programs.

    Parameters
    ----------
    client, endpoint
        The job's state server.

    Attributes
    ----------
    job
        Name of the job; empty until events have been read, or if nobody records the job.
    launches
        The launches so far; none until events have been read, or if nobody records the job.
    progress_s
        Unix time of the last progress; None until there was some, and until events have been read.
    """

    def __init__(self, client: redis.Redis, endpoint: Endpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._known: deque[Event] = deque(maxlen=2 * MAX_EVENTS)
        self._last_ids = {STREAM: "-", REQUESTS: "-", JOURNAL: "-"}
        self.job = ""
        self.launches: list[LaunchSpan] = []
        self.progress_s: float | None = None

    def add(self, event: Event) -> None:
        """Write one event."""
        text = json.dumps([event.time_us, event.kind, event.text[:MAX_TEXT], event.host, event.gpu])
        self._client.xadd(self._endpoint.key(STREAM), {"event": text}, maxlen=MAX_EVENTS, approximate=True)

    def between(self, start_us: int, end_us: int) -> list[Event]:
        """Return the events in a time range, both ends included, in order."""
        with self._lock:
            logged, requests, entries = self._read_new()
            self._known.extend(Event(*json.loads(fields[b"event"])) for _, fields in logged)
            # Not read with Control, which would wait a tenth of a second if there is nothing new.
            for entry_id, fields in requests:
                time_us = int(entry_id.partition(b"-")[0]) * 1000
                for kind, text in fields.items():
                    self._known.extend(_events_of_request(time_us, kind.decode(), json.loads(text)["body"]))
            for _, fields in entries:
                self._take_entry(json.loads(fields[b"entry"]))
            found = [event for event in self._known if start_us <= event.time_us <= end_us]
        return sorted(found, key=lambda event: event.time_us)

    def _take_entry(self, entry: Mapping[str, Any]) -> None:
        time_us = round(entry["time_s"] * 1_000_000)
        match entry["event"]:
            case "job":
                self.job, self.launches, self.progress_s = str(entry["name"]), [], None
            case "progress" if entry["commits"] or entry["step"] is not None:
                self.progress_s = entry["seen_s"]
            case "launch" if all(launch.number != entry["launch"] for launch in self.launches):
                nodes, reserve = tuple(entry["nodes"]), tuple(entry["reserve"])
                self.launches.append(LaunchSpan(entry["launch"], nodes, reserve, time_us))
            case "launch-end" if self.launches and self.launches[-1].number == entry["launch"]:
                self.launches[-1] = replace(self.launches[-1], ended_us=time_us)
        event = _event_of_entry(entry)
        if event is not None and event not in self._known:  # an entry whose acknowledgement was lost is stored twice
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


def _event_of_entry(entry: Mapping[str, Any]) -> Event | None:
    time_us = round(entry["time_s"] * 1_000_000)
    match entry["event"]:
        case "failure":
            return Event(time_us, "failure", str(entry["sentence"])[:MAX_TEXT], entry.get("host") or "")
        case "hang":
            return Event(time_us, "failure", str(entry["sentence"])[:MAX_TEXT], entry.get("suspect") or "")
        case "launch-end":
            return Event(time_us, "launch-end", f"{entry['launch']} ended: {entry['why']}"[:MAX_TEXT])
        case _:
            return None


def _events_of_request(time_us: int, kind: str, body: Sequence[Any]) -> Iterable[Event]:
    match kind:
        case "verdicts":
            for verdict in body:
                yield Event(time_us, "verdict", _words(verdict), verdict.get("host", ""), verdict.get("gpu") or "")
        case "reboot":
            hosts = ", ".join(map(str, body))
            yield Event(time_us, "request", f"the program asks for a relaunch{' without ' if hosts else ''}{hosts}")
        case "notices":
            for notice in body:
                yield Event(time_us, "notice", str(notice))


def _words(verdict: Mapping[str, Any]) -> str:
    cause = verdict.get("cause") or "unknown"
    likely = "" if cause == "unknown" else f"; likely cause: {cause}"
    return f"{verdict.get('evidence', '')}{likely} ({verdict.get('severity', '')}, {verdict.get('action', '')})"


def series_of_events(events: Iterable[Event]) -> list[TimeSeries]:
    """Return events as series, for a dump."""
    one = np.ones(1)
    return [TimeSeries(EVENTS, _tags(event), np.array([event.time_us], dtype=np.int64), one) for event in events]


def keys_of_events(events: Iterable[Event]) -> set[SeriesKey]:
    """Return the keys of these events as series, without their texts, which are no use in a filter."""
    return {key_of(EVENTS, {name: value for name, value in _tags(event).items() if name != "text"}) for event in events}


def events_of_series(series: Iterable[TimeSeries]) -> list[Event]:
    """Return the events that :func:`series_of_events` turned into series."""
    events = [
        Event(time_us, *(each.tags.get(name, "") for name in ("kind", "text", "host", "gpu")))
        for each in series
        for time_us in each.times_us.tolist()
    ]
    return sorted(events, key=lambda event: event.time_us)


def _tags(event: Event) -> Mapping[str, str]:
    tags = {"kind": event.kind, "text": event.text, "host": event.host, "gpu": event.gpu}
    return {key: value for key, value in tags.items() if value}
