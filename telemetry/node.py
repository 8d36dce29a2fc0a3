"""One node's telemetry: its samples and summaries, the socket that fills them, answers to queries, rollups, dumps."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis

from laggard.kvstore.client.connection import Session
from laggard.kvstore.control import nodes_in_use
from laggard.kvstore.series.sample_store import SampleStore
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.dumps.writing import GATHER_DEADLINE_S, Part, parts_of_nodes, write_dump
from laggard.telemetry.errors import NodeError
from laggard.telemetry.events import EventLog, series_of_events
from laggard.telemetry.nodes.bus import NodeAnswerer, NodeAsker
from laggard.telemetry.nodes.notices import tell, tell_if_restarted
from laggard.telemetry.nodes.sources import answer_question
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.sending.batches import Batch, Ingest, socket_name
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.store.history import History
from laggard.telemetry.store.rollups import INTERVAL_US, ROLLUPS, Publisher, Run
from laggard.telemetry.store.tiers import WINDOWS_S, Tiers

_log = logging.getLogger("laggard.telemetry")

# How long samples wait until they are added to the tiers; a query adds up those that wait.
KEEP_INTERVAL_S = 1.0
STOP_DEADLINE_S = 3.0
# How long samples wait unread while a question is answered.
GIVE_WAY_S = 0.05
FULL_BELOW = 0.9  # of the window


class NodeTelemetry:
    """Runs a node's telemetry during the ``with`` block."""

    def __init__(
        self,
        session: Session,
        settings: TelemetrySettings,
        clock: Callable[[], float] = time.time,
        *,
        keep_interval_s: float = KEEP_INTERVAL_S,
        gather_deadline_s: float = GATHER_DEADLINE_S,
        stop_deadline_s: float = STOP_DEADLINE_S,
    ) -> None:
        self._keep_interval_s = keep_interval_s
        self._gather_deadline_s = gather_deadline_s  # how long a dump of all nodes waits for one
        self._stop_deadline_s = stop_deadline_s
        self._session = session  # the node's environment and its connection to the state server
        self._settings = settings  # the job's settings
        self._clock = clock  # returns Unix time in seconds
        self._host = session.environment.node
        self._events = EventLog(session.client, session.endpoint)
        tiers = Tiers(WINDOWS_S, max_bytes=settings.tiers_megabytes << 20, clock=clock)
        # The node's samples; collectors in this process add to it directly
        self.store = SampleStore(
            settings.default_tmdb_window, clock=clock, max_bytes=settings.store_megabytes << 20, observe=tiers.add
        )
        self.history = History(tiers, self.store)
        self._run = Run.new(self._host, round(clock() * SECOND_US))
        self._publisher = Publisher(self._run, tiers)
        self._told_full = False
        self._published, self._dumped_s = self._interval(), clock()
        self._ended = threading.Event()
        self._dump_lock = threading.Lock()
        self._keeper = threading.Thread(target=self._keep, name="telemetry-keeper", daemon=True)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.begin()  # first: whoever is answered learns what is lost
        socket_path = self._session.environment.endpoint_file.parent / socket_name(self._host)
        answerer = NodeAnswerer(self._session.client, self._session.endpoint, self._host, self.answer)
        give_way = partial(answerer.under_way.give_way, GIVE_WAY_S)
        self._open.enter_context(Ingest(socket_path, self._take, give_way))
        self._open.enter_context(answerer)
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._keeper.join(self._stop_deadline_s)
        self._dump_lock.acquire(timeout=self._stop_deadline_s)  # a dump that was asked for leaves nothing behind either
        self._open.close()

    def begin(self) -> None:
        """Say so if an earlier process has run on this node, whose samples are lost."""
        had = "what it had read before is lost, except what the primary has of it"
        if tell_if_restarted(self._session, socket_name(self._host), f"{self._host}: its telemetry begins anew; {had}"):
            self.history.began_us = self._run.since_us

    def _take(self, batch: Batch) -> None:
        for key, (times_us, values) in batch.items():
            self.store.extend(key, times_us, values)
        self.history.tiers.relieve()

    def answer(self, question: Mapping[str, Any]) -> Value:
        """Answer a question to this node."""
        return self._dump() if question["kind"] == "dump" else answer_question(self.history, self._run, question)

    def _dump(self) -> dict[str, Value]:
        """Write a dump, and return its path and what it lacks, or why there is none; our end abandons it."""
        missing: list[str] = []
        try:
            return {"path": str(self._written(missing)), "missing": missing}
        except (OSError, NodeError, redis.RedisError) as error:
            return {"failure": str(error)}

    def _written(self, missing: list[str]) -> Path:
        """Write a dump of this node, or of all nodes, and note which of them it lacks."""
        if is_of_all := self._settings.dump_node == self._host:
            asker = NodeAsker(self._session.client, self._session.endpoint, ended=self._ended)
            expected = nodes_in_use(self._session.client, self._session.endpoint)
            events = self._events.between(0, ALL_TIME_US)
            parts = parts_of_nodes(asker, events, expected, missing, self._gather_deadline_s)
        else:
            parts = self._everything()
        name = "all" if is_of_all else self._host
        with self._dump_lock:
            return write_dump(self._settings.dump_dir, name, self._clock(), self._until_the_end(parts))

    def _until_the_end(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if self._ended.is_set():
                raise NodeError(f"the telemetry of {self._host} ends: its dump was abandoned")
            yield part

    def _everything(self) -> Iterator[Part]:
        for metric in sorted(self.history.metrics()):
            summaries, samples = self.history.everything(metric)
            yield from summaries
            yield from samples
        yield from series_of_events(self._events.between(0, ALL_TIME_US))

    def _keep(self) -> None:
        """Do so again and again, and publish what is left at the end."""
        while not self._ended.wait(self._keep_interval_s):
            self.keep()
        self._publisher.add(self.history.tiers.fold())
        self._publish()

    def keep(self) -> None:
        """Fold what has arrived, trim, publish rollups and write a dump, each when it is due."""
        self._publisher.add(self.history.tiers.fold())
        self.store.trim()
        self._tell_if_full()
        self.history.tiers.trim()
        if self._published != (interval := self._interval()):
            self._published = interval
            self._publish()
        interval_s = self._settings.dump_interval
        if interval_s and self._clock() - self._dumped_s >= interval_s and self._settings.dump_node in {"", self._host}:
            self._dumped_s = self._clock()
            dump = self._dump()
            if failure := dump.get("failure"):
                _log.warning("cannot write the dump: %s", failure)
            elif lacks := dump["missing"]:
                _log.warning("the dump lacks %s: no answer in time", ", ".join(lacks))

    def _tell_if_full(self) -> None:
        """Say once how many seconds of samples fit, if they are fewer than were asked for."""
        fit_s = self._clock() - self.store.complete_from_us / SECOND_US
        if not self._told_full and fit_s < FULL_BELOW * self.store.window_s:
            self._told_full = True
            of_store = f"{self._settings.store_megabytes} MiB (store_megabytes)"
            asked = f"of {self.store.window_s:g} s (default_tmdb_window); before that there are summaries of a second"
            tell(self._session, f"{self._host}: {of_store} hold the samples of about {fit_s:.0f} s {asked}")

    def _interval(self) -> int:
        return round(self._clock() * SECOND_US) // INTERVAL_US

    def _publish(self) -> None:
        message = self._publisher.message()
        try:
            if message is not None and self._session.client.publish(self._session.endpoint.key(ROLLUPS), message):
                self._publisher.received()
        except redis.RedisError as error:
            _log.info("the rollups of one interval wait for the state server: %s", error)
