"""The journal: a job's events, in a file and in the state server.

The file ``job.jsonl`` holds one JSON object per line, written as things happen: after a controller was killed, it is
complete up to that moment. Every entry has ``time_s`` (Unix time) and the fields of its record, whose kind is in
``is`` (:mod:`laggard.resilience.record.entries`). ``shown`` is the event as which telemetry
shows an entry, with its text, for those who know nothing of the kinds; the first entry also has ``format``.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis

from laggard.detectors.verdict import Verdict
from laggard.errors import LaggardError
from laggard.kvstore.client.connection import Endpoint
from laggard.records import plain, record_of
from laggard.resilience.decision import wording
from laggard.resilience.record.entries import KINDS, FailureFound, HangFound, LaunchEnded, Record, Told
from laggard.resilience.text import printable
from laggard.system.steady_clock import SteadyClock
from laggard.telemetry.course import JobBegan, LaunchBegan
from laggard.telemetry.events import MAX_TEXT, Event

FORMAT = 1
JOURNAL_FILE = "job.jsonl"
LATEST_S = 1e11
"""Later Unix times are refused: their dates have years of five digits."""
_STREAM = "journal"
_MAX_PUBLISHED = 10_000


class JournalError(LaggardError, ValueError):
    """A journal cannot be read; ``reason`` reads on from the ``path`` of its file."""

    path: Path
    reason: str
    template = "{path} {reason}"


class OtherFormatError(LaggardError, ValueError):
    """A journal was written by another version of laggard; ``found`` is its format, ``reads`` the one that is read."""

    found: object
    reads: int
    template = "format {found!r}, and this version of laggard reads {reads}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a job: when it was (Unix time), and what it was."""

    time_s: float
    record: Record

    def to_json(self) -> str:
        """Return the entry as one line of JSON."""
        written = {"format": FORMAT} if isinstance(self.record, JobBegan) else {}
        shown = event_of(self)
        of_telemetry = {} if shown is None else {"shown": plain(shown)}
        return json.dumps({"time_s": round(self.time_s, 3)} | plain(self.record) | written | of_telemetry)

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Parse a line that :meth:`to_json` wrote."""
        found = json.loads(text)
        time_s, name = record_of(_Time, found).time_s, str(found.get("is"))
        if name == JobBegan.__name__ and (version := found.get("format")) != FORMAT:
            raise OtherFormatError(version, FORMAT)
        if name not in KINDS:
            raise ValueError(f"there is no entry {name!r}")
        if not 0 <= time_s < LATEST_S:
            raise ValueError(f"its time is {time_s}")
        return cls(time_s, record_of(KINDS[name], found, printable))


@dataclass(frozen=True, slots=True)
class _Time:
    time_s: float


def event_of(entry: Entry) -> Event | None:
    """Return the event as which telemetry shows an entry; None if it does not."""
    time_us = round(entry.time_s * 1_000_000)
    match entry.record:
        case LaunchBegan(launch, nodes, reserve):
            return Event(time_us, "launch", launch=launch, nodes=nodes, reserve=reserve)
        case LaunchEnded(launch, why):
            return Event(time_us, "launch-end", wording.reason(why)[:MAX_TEXT], launch=launch)
        case FailureFound(failure):
            return Event(time_us, "failure", wording.failure(failure)[:MAX_TEXT], failure.host)
        case HangFound(_, hang):
            return Event(time_us, "failure", wording.hang(hang)[:MAX_TEXT], hang.suspect)
        case Told("notice" | "request" as kind, text):
            return Event(time_us, kind, text[:MAX_TEXT])
        case Verdict() as verdict:
            return Event(
                time_us,
                "verdict",
                str(verdict.evidence)[:MAX_TEXT],
                verdict.host,
                verdict.gpu or "",
                severity=verdict.severity,
                cause=str(verdict.cause) if verdict.cause.is_known else "",
                action=verdict.action,
            )
    return None


class Journal:
    """Takes entries from any thread; writes them to the file at once, and to the state server on :meth:`publish`."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / JOURNAL_FILE
        self._lock = threading.Lock()
        self._unpublished: deque[str] = deque(maxlen=_MAX_PUBLISHED)
        self.changed = threading.Event()  # set by each entry, to wake the publisher
        self.clock = SteadyClock()  # gives the times of the entries
        self.trouble: str | None = None  # why writing to the file was given up; `None` if it was not

    def write(self, record: Record) -> None:
        """Add an entry; if the file cannot be written, give it up and set ``trouble``."""
        line = Entry(self.clock.now_s(), record).to_json()
        with self._lock:
            self._unpublished.append(line)
            if self._path is not None:
                try:
                    _append(self._path, line)
                except OSError as error:
                    self.trouble = f"no record of the job is kept: {self._path}: {error.strerror}"
                    self._path = None
        self.changed.set()

    def publish(self, client: redis.Redis, endpoint: Endpoint) -> None:
        """Send new entries to the state server."""
        while self._unpublished:
            line = self._unpublished[0]
            client.xadd(endpoint.key(_STREAM), {"entry": line}, maxlen=_MAX_PUBLISHED, approximate=True)
            self._unpublished.popleft()


def read_journal(path: Path) -> list[Entry]:
    """Return the entries of a file, without a last line that was cut short."""
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if rest and not lines:
        raise JournalError(path, "is not the journal of a job: it has no complete line")
    entries = list(_parsed(path, lines))
    if not entries or not isinstance(entries[0].record, JobBegan):
        raise JournalError(path, "is not the journal of a job: its first entry is not its beginning")
    return entries


def published_entries(client: redis.Redis, endpoint: Endpoint) -> list[Entry]:
    """Return the running job's entries from the state server; none if it has no journal yet."""
    found = cast("list[Any]", client.xrange(endpoint.key(_STREAM)))
    # An entry whose acknowledgement was lost is stored twice.
    entries = [Entry.from_json(line) for line in dict.fromkeys(fields[b"entry"] for _, fields in found)]
    begins = [number for number, entry in enumerate(entries) if isinstance(entry.record, JobBegan)]
    return entries[begins[-1] :] if begins else []


def _parsed(path: Path, lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        try:
            yield Entry.from_json(line)
        except OtherFormatError as error:
            raise JournalError(path, f"has {error}: use the version that wrote it") from error
        except ValueError as error:
            raise JournalError(path, f"is damaged: line {number} is not a journal entry: {error}") from error


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(line + "\n")
