"""The journal: a job's events, in a file and in the state server.

The file ``job.jsonl`` holds one JSON object per line, written as things happen: after a controller was killed, it is
complete up to that moment. Every entry has ``time_s`` (Unix time) and ``event``:

==============  ====================================================================================================
``event``       other fields
==============  ====================================================================================================
``job``         the first entry: ``format`` (1), ``name``, ``id``, ``command``, ``pid``, ``machine``, ``level`` and
                ``port`` of the telemetry, ``folder`` (of this record, or null), ``nodes`` (the whole allocation; each
                with ``hostname``, ``address``, ``devices``)
``launch``      a launch began: ``launch``, ``nodes``, ``reserve`` (host names), ``gap`` (null, or ``stop_s``,
                ``fence_s``, ``nodes_s``: the phases of the relaunch that led to it)
``launch-end``  the launch ended, or a relaunch was decided: ``launch``, ``why``; ``cause`` (``end``, ``failure``,
                ``node lost``, ``hang``, ``exclusion`` or ``stop``); ``wait_s``, the back-off before the next launch
``progress``    how far a launch has come: ``launch``, ``commits`` (to State, by all launches so far), ``step`` (the
                newest that it reported, or null), ``seen_s`` (Unix time at which that was first seen)
``verdict``     a detector's verdict: ``host``, ``gpu``, ``slowdown``, ``severity``, ``evidence``, ``cause``,
                ``action``, ``own_past``, ``at_times``
``failure``     the program failed: ``sentence``, and what it is made of: ``host``, ``rank`` (or null), ``pid``,
                ``exit_code``, ``job_exit_code``, ``ended_s``, ``ran_s``, ``quote``, ``cause``, ``kind``, ``response``,
                ``fingerprint``, ``subject``, ``last_line`` (if no line says why), ``lingers_s`` (null, or for how long
                it has been silent, if it does not end); ``evidence`` found on its nodes, by host name
``hang``        the program hangs: ``launch``, ``sentence``, ``suspect`` (host name, or empty), ``stacks`` (null, or
                the file in the record's folder with the stacks of all ranks)
``left-out``    how many of the program's own metrics the record has no room for: ``n_metrics``
``told``        a line of the log that the user saw: ``what``, ``text``
``error``       laggard itself had to give up: ``why``
``end``         the job ended: ``exit_code``, ``excluded`` (host names); only lines about its report follow, and
                ``progress`` that was held back
==============  ====================================================================================================

The state server holds the same entries in the stream ``journal``, for viewers on other nodes. A reused state directory
also holds the entries of earlier jobs; the newest ``job`` entry is where the current one begins.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis

from laggard.errors import LaggardError
from laggard.kvstore.client.connection import Endpoint
from laggard.system.steady_clock import SteadyClock

__all__ = [
    "FORMAT",
    "JOURNAL_FILE",
    "LATEST_S",
    "Entry",
    "Journal",
    "JournalError",
    "published_entries",
    "read_journal",
]

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


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a job.

    Attributes
    ----------
    time_s
        Unix time.
    event
        Its kind.
    fields
        Its other fields, as plain JSON values.
    """

    time_s: float
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the entry as one line of JSON."""
        return json.dumps({"time_s": round(self.time_s, 3), "event": self.event, **self.fields})

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Parse a line that :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            If it is not one.
        """
        found = json.loads(text)
        try:
            entry = cls(float(found.pop("time_s")), str(found.pop("event")), found)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}" if isinstance(error, KeyError) else str(error)) from error
        if not 0 <= entry.time_s < LATEST_S:
            raise ValueError(f"its time is {entry.time_s}")
        return entry


class Journal:
    """Takes entries from any thread; writes them to the file at once, and to the state server on :meth:`publish`.

    Parameters
    ----------
    folder
        Folder for the file; ``None``: no file is written.

    Attributes
    ----------
    changed
        Set by each entry, to wake the publisher.
    clock
        Gives the times of the entries.
    trouble
        Why writing to the file was given up; ``None`` if it was not.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / JOURNAL_FILE
        self._lock = threading.Lock()
        self._unpublished: deque[str] = deque(maxlen=_MAX_PUBLISHED)
        self.changed = threading.Event()
        self.clock = SteadyClock()
        self.trouble: str | None = None

    def write(self, event: str, /, **fields: object) -> None:
        """Add an entry; if the file cannot be written, give it up and set ``trouble``."""
        line = Entry(self.clock.now_s(), event, fields).to_json()
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
        """Send new entries to the state server.

        Raises
        ------
        redis.RedisError
            If it does not answer; the entries are kept for the next call.
        """
        while self._unpublished:
            line = self._unpublished[0]
            client.xadd(endpoint.key(_STREAM), {"entry": line}, maxlen=_MAX_PUBLISHED, approximate=True)
            self._unpublished.popleft()


def read_journal(path: Path) -> list[Entry]:
    """Return the entries of a file, without a last line that was cut short.

    Raises
    ------
    JournalError
        If it cannot be read, is not a journal, or was written by a newer version.
    """
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if rest and not lines:
        raise JournalError(path, "is not the journal of a job: it has no complete line")
    entries = list(_parsed(path, lines))
    if not entries or entries[0].event != "job":
        raise JournalError(path, "is not the journal of a job: its first entry is not 'job'")
    if (version := entries[0].fields.get("format")) != FORMAT:
        raise JournalError(
            path, f"has format {version!r}, and this version of laggard reads {FORMAT}: use the version that wrote it"
        )
    return entries


def published_entries(client: redis.Redis, endpoint: Endpoint) -> list[Entry]:
    """Return the running job's entries from the state server; none if it has no journal yet."""
    found = cast("list[Any]", client.xrange(endpoint.key(_STREAM)))
    # An entry whose acknowledgement was lost is stored twice.
    entries = [Entry.from_json(line) for line in dict.fromkeys(fields[b"entry"] for _, fields in found)]
    begins = [number for number, entry in enumerate(entries) if entry.event == "job"]
    return entries[begins[-1] :] if begins else []


def _parsed(path: Path, lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        try:
            yield Entry.from_json(line)
        except ValueError as error:
            raise JournalError(path, f"is damaged: line {number} is not a journal entry: {error}") from error


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(line + "\n")
