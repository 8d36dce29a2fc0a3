"""Rollups: what each node publishes of its summaries every ten seconds, and the primary's tiers of all nodes.

A message holds a table of what has arrived since the last one, packed by columns. The table numbers the series; their
keys are sent once, and again every minute for a primary that has been started since. The primary's tiers answer
overviews of many nodes without asking them, and for nodes that are gone.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from laggard.kvstore.series.sample_store import SeriesKey
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.parsing import SubQuery
from laggard.telemetry.store.chunks import Chunk, chunk_from_bytes, pack_rows
from laggard.telemetry.store.history import Downsampled, History, Summarized
from laggard.telemetry.store.planning import plan
from laggard.telemetry.store.summaries import COLUMNS, Summaries, concatenated, merged, n_rows, where
from laggard.telemetry.store.tiers import MINUTE_US, TEN_SECONDS_US, Tiers

_log = logging.getLogger("laggard.telemetry")

ROLLUPS = "telemetry-rollups"
"""Name of the channel on which nodes publish them."""
INTERVAL_US = TEN_SECONDS_US
MAX_SERIES = 400_000
MAX_KEYS_BYTES = 64 << 20
BATCH_ROWS = 131_072
KEYS_EVERY = 6
# While nobody listens, so much is kept for a server that comes back: an hour of 500 series.
MAX_WAITING_ROWS = 180_000
_LENGTHS = struct.Struct("<III")
"""Lengths of a message's head, of its keys, deflated, and of these keys as they were."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a node's telemetry process: the node, a name of the run, and since when it has taken samples."""

    host: str
    name: str
    since_us: int

    @classmethod
    def new(cls, host: str, since_us: int) -> Run:
        """Return a source with a name that no other has."""
        return cls(host, secrets.token_hex(6), since_us)


class Publisher:
    """Makes the messages of one node."""

    def __init__(self, source: Run, tiers: Tiers) -> None:
        self._source = source  # who publishes
        self._tiers = tiers  # number the series
        self._waiting: list[Summaries] = []
        self._keys = 0
        self._received_keys = 0
        self._received = 0

    def add(self, rows: Summaries) -> None:
        """Add what :meth:`Tiers.fold` returned."""
        if n_rows(rows):
            self._waiting.append(rows)

    def message(self) -> bytes | None:
        """Return all that was added since the last message that was received; None if there is nothing."""
        if not self._waiting:
            return None
        rows = merged(concatenated(self._waiting), INTERVAL_US)
        if n_rows(rows) > MAX_WAITING_ROWS:
            rows = where(rows, np.sort(np.argsort(rows["start_us"], kind="stable")[-MAX_WAITING_ROWS:]))
        self._waiting = [rows]
        first = 0 if self._received % KEYS_EVERY == 0 else self._received_keys
        known = self._tiers.known()
        keys = orjson.dumps([[each.key[0], [part for pair in each.key[1] for part in pair]] for each in known[first:]])
        self._keys = len(known)
        head = orjson.dumps([self._source.host, self._source.name, self._source.since_us, first])
        packed = zlib.compress(keys, level=1)
        return b"".join(
            (_LENGTHS.pack(len(head), len(packed), len(keys)), head, packed, pack_rows(rows, INTERVAL_US).to_bytes())
        )

    def received(self) -> None:
        """Say that somebody has received the last message; until then its rows are part of the next one."""
        self._waiting = []
        self._received, self._received_keys = self._received + 1, self._keys


@dataclass(slots=True)
class _Sender:
    """A source that has published, and our numbers of its series; -1: not known."""

    source: Run
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class Rollups:
    """The tiers of all nodes, on the primary."""

    def __init__(self, windows_s: Mapping[int, float], *, max_bytes: int, clock: Callable[[], float]) -> None:
        kept = {width_us: windows_s[width_us] for width_us in (TEN_SECONDS_US, MINUTE_US)}
        self._tiers = Tiers(kept, max_bytes=max_bytes, clock=clock, max_series=MAX_SERIES, batch_rows=BATCH_ROWS)
        self._lock = threading.Lock()
        self._senders: dict[str, _Sender] = {}
        self.history = History(self._tiers)

    def take(self, message: bytes) -> None:
        """Add what a node has published."""
        source, first, keys, chunk = _parsed(message)
        with self._lock:
            sender = self._senders.setdefault(source.name, _Sender(source))
            self._learn(sender, first, keys)
            rows = chunk.unpack(COLUMNS)
            if int(rows["series"].min()) < 0:
                raise ValueError("not valid rollups: a series has a negative number")
            rows = where(rows, rows["series"] < len(sender.numbers))
            places = sender.numbers[rows["series"]]
            known = places >= 0
            if int(known.sum()) < chunk.n_rows:
                unknown = chunk.n_rows - int(known.sum())
                _log.info("%d of %d rollups of %s are of unknown series", unknown, chunk.n_rows, source.host)
            self._tiers.add_rows(where({**rows, "series": places}, known), INTERVAL_US)

    def can_answer(self, query: SubQuery, span: Span) -> bool:
        """Return whether the rollups have the whole range, and give this downsampling exactly."""
        if query.downsample is None or not query.metrics:
            return False
        grid = self.history.grid(query, span)
        first_us = self.history.origins()[-1].complete_from_us
        return first_us <= grid.begin_us and all(each.exact for each in plan(grid, self.history.origins()))

    def beside(self, query: SubQuery, span: Span, answered: Mapping[str, Run]) -> Downsampled:
        """Return what the answers of some nodes lack: other nodes, and what a node had before it was started anew."""
        with self._lock:
            senders = [each.source for each in self._senders.values() if each.source.name not in answered]
        since_us = {source.host: source.since_us for source in answered.values()}
        gone = {source.name for source in senders if source.host not in since_us}
        found = self.history.downsampled(query, span, from_source=gone.__contains__) if gone else Downsampled([])
        for host in sorted({source.host for source in senders} & since_us.keys()):
            runs = {source.name for source in senders if source.host == host}
            if span.start_us < since_us[host]:
                earlier = Span(span.start_us, min(span.end_us, since_us[host] - 1), span.milliseconds)
                more = self.history.downsampled(query, earlier, from_source=runs.__contains__)
                found.series += more.series
                found.approximate_us = max(found.approximate_us, more.approximate_us)
        return found

    def lost(self, there: Collection[str]) -> Iterator[Summarized]:
        """Yield the summaries of all runs but those of the given names, which are still there."""
        with self._lock:
            lost = {*self._senders} - {*there}
        for metric in sorted({each.key[0] for each in self._tiers.known() if each.source in lost}):
            summaries, _ = self.history.everything(metric, lost.__contains__)
            yield from summaries

    def _learn(self, sender: _Sender, first: int, keys: list[SeriesKey]) -> None:
        if first + len(keys) > MAX_SERIES or first < 0:
            raise ValueError(f"not valid rollups: more than {MAX_SERIES} series")
        numbers = np.full(max(len(sender.numbers), first + len(keys)), -1, dtype=np.int64)
        numbers[: len(sender.numbers)] = sender.numbers
        for place, key in enumerate(keys, first):
            number = self._tiers.number_of(key, sender.source.name)
            numbers[place] = -1 if number is None else number
        sender.numbers = numbers


def _parsed(message: bytes) -> tuple[Run, int, list[SeriesKey], Chunk]:
    try:
        n_head, n_keys, keys_bytes = _LENGTHS.unpack_from(message)
        body = memoryview(message)[_LENGTHS.size :]
        host, name, since_us, first = orjson.loads(body[:n_head])
        inflated = zlib.decompressobj().decompress(body[n_head : n_head + n_keys], min(keys_bytes, MAX_KEYS_BYTES) or 1)
        keys = [_key(metric, tags) for metric, tags in orjson.loads(inflated)]
        run = Run(str(host), str(name), int(since_us))
        return run, int(first), keys, chunk_from_bytes(bytes(body[n_head + n_keys :]))
    except (ValueError, TypeError, struct.error, zlib.error) as error:
        raise ValueError(f"not valid rollups: {error}") from error


def _key(metric: Any, tags: Any) -> SeriesKey:
    if not all(isinstance(part, str) for part in (metric, *tags)):
        raise ValueError("names must be text")
    return metric, tuple(zip(tags[::2], tags[1::2], strict=True))
