"""The journal: what happened in a job, an entry for each, in a file and in the state server.

The file ``job.jsonl`` has one JSON object a line, and is written as things happen: it is whole up to the moment at
which a controller was killed. ``time_s`` (Unix time) and ``event`` stand in every entry:

==============  ====================================================================================================
``event``       what else stands there
==============  ====================================================================================================
``job``         the first entry: ``format`` (1), ``name``, ``id``, ``command``, ``pid``, ``machine``, ``level`` and
                ``port`` of the telemetry, ``folder`` (of this record, or null), ``nodes`` (all of the allocation, each
                ``hostname``, ``address``, ``devices``)
``launch``      a launch began: ``launch``, ``nodes``, ``reserve`` (host names), ``gap`` (null, or ``stop_s``,
                ``fence_s``, ``nodes_s``: what it took to get here)
``launch-end``  ``launch``, ``why``: it ended, or a relaunch was decided
``verdict``     a detector's finding: ``host``, ``gpu``, ``slowdown``, ``severity``, ``evidence``, ``cause``, ``action``
``told``        a line that the user has read: ``what``, ``text``
``end``         the job has ended: ``exit_code``, ``excluded`` (host names); after it only what is told of its report
==============  ====================================================================================================

The state server has the same entries in the stream ``journal``, for those who look at the job from another node.
An old state directory has those of earlier jobs too; the newest ``job`` entry is where this one begins.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis

from kvstore.endpoint import Endpoint

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
"""No Unix time of a job is later: by then dates have five digits for the year."""
_STREAM = "journal"
_MAX_PUBLISHED = 10_000


class JournalError(ValueError):
    """A journal cannot be read; the message names the file and the way out."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened.

    Attributes
    ----------
    time_s
        Unix time.
    event
        What kind of thing.
    fields
        What else there is to say, as plain JSON values.
    """

    time_s: float
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the entry as one line of JSON."""
        return json.dumps({"time_s": round(self.time_s, 3), "event": self.event, **self.fields})

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Read an entry back from :meth:`to_json`'s text.

        Raises
        ------
        ValueError
            If it is none.
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
    """Takes entries from any thread; they are in the file at once, and in the state server when it is published.

    Parameters
    ----------
    folder
        Where the file goes; ``None``: nowhere.

    Attributes
    ----------
    news
        Set by each entry, for who publishes them.
    trouble
        Why the file was given up, if it was.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / JOURNAL_FILE
        self._lock = threading.Lock()
        self._unpublished: deque[str] = deque(maxlen=_MAX_PUBLISHED)
        self.news = threading.Event()
        self.trouble: str | None = None

    def write(self, event: str, /, **fields: object) -> None:
        """Take note of something; a file that cannot be written is given up, with a word in ``trouble``."""
        line = Entry(time.time(), event, fields).to_json()
        with self._lock:
            self._unpublished.append(line)
            if self._path is not None:
                try:
                    _append(self._path, line)
                except OSError as error:
                    self.trouble = f"no record of the job is kept: {self._path}: {error.strerror}"
                    self._path = None
        self.news.set()

    def publish(self, client: redis.Redis, endpoint: Endpoint) -> None:
        """Send what is new to the state server.

        Raises
        ------
        redis.RedisError
            If it does not answer; the entries wait for the next time.
        """
        while self._unpublished:
            line = self._unpublished[0]
            client.xadd(endpoint.key(_STREAM), {"entry": line}, maxlen=_MAX_PUBLISHED, approximate=True)
            self._unpublished.popleft()


def read_journal(path: Path) -> list[Entry]:
    """Return the entries of a file; a last line that was cut short is left out.

    Raises
    ------
    JournalError
        If it cannot be read, is no journal, or was written by a newer version.
    """
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if rest and not lines:
        raise JournalError(f"{path} is no journal of a job: it has no whole line")
    entries = list(_parsed(path, lines))
    if not entries or entries[0].event != "job":
        raise JournalError(f"{path} is no journal of a job: its first entry is not 'job'")
    if (version := entries[0].fields.get("format")) != FORMAT:
        raise JournalError(
            f"{path} has format {version!r} and this version of laggard reads {FORMAT}: use the version that wrote it"
        )
    return entries


def published_entries(client: redis.Redis, endpoint: Endpoint) -> list[Entry]:
    """Return the entries of the running job that the state server has, none where it has no journal."""
    found = cast("list[Any]", client.xrange(endpoint.key(_STREAM)))
    # An entry whose acknowledgement was lost stands there twice.
    entries = [Entry.from_json(line) for line in dict.fromkeys(fields[b"entry"] for _, fields in found)]
    begins = [number for number, entry in enumerate(entries) if entry.event == "job"]
    return entries[begins[-1] :] if begins else []


def _parsed(path: Path, lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        try:
            yield Entry.from_json(line)
        except ValueError as error:
            raise JournalError(f"{path}, line {number} is no entry of a journal: {error}") from error


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(line + "\n")
