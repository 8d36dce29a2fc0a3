"""One node's part of the telemetry: the store, its door, its answers, and its rollups on their way to the primary."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from itertools import chain
from types import TracebackType
from typing import Any, Self

import redis

from kvstore.codec import Value
from kvstore.session import Session
from kvstore.store import SampleStore
from telemetry.batches import Batch, socket_name
from telemetry.bus import NodeAnswerer, NodeAsker, NodeError
from telemetry.dump import dump_nodes, write_dump
from telemetry.events import EventLog, series_of_events
from telemetry.ingest import Ingest
from telemetry.query.times import ALL_TIME_US, SECOND_US
from telemetry.rollups import INTERVAL_US, ROLLUPS, roll_up
from telemetry.settings import TelemetrySettings
from telemetry.sources import answer_question

__all__ = ["NodeTelemetry"]

_log = logging.getLogger("laggard.telemetry")

TRIM_INTERVAL_S = 2.0
# How long after the end of its interval a sample may still come in and be in the rollup.
ROLLUP_DELAY_S = 1.0
STOP_DEADLINE_S = 3.0


class NodeTelemetry:
    """Runs a node's telemetry for as long as the ``with`` block lasts.

    Parameters
    ----------
    session
        The node's environment and its connection to the state server.
    settings
        Of the job.
    clock
        Gives Unix time in seconds.

    Attributes
    ----------
    store
        The node's samples; what runs in this process adds to it directly.
    """

    def __init__(self, session: Session, settings: TelemetrySettings, clock: Callable[[], float] = time.time) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock
        self._host = session.environment.node
        self._events = EventLog(session.client, session.endpoint)
        self.store = SampleStore(settings.default_tmdb_window, clock=clock, max_bytes=settings.store_megabytes << 20)
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="telemetry-keeper", daemon=True)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        socket_path = self._session.environment.endpoint_file.parent / socket_name(self._host)
        self._open.enter_context(Ingest(socket_path, self._take))
        client = self._session.client
        self._open.enter_context(NodeAnswerer(client, self._session.endpoint, self._host, self._answer))
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._keeper.join(STOP_DEADLINE_S)  # a dump that has begun needs the answers to its questions
        self._open.close()

    def _take(self, batch: Batch) -> None:
        for key, (times_us, values) in batch.items():
            self.store.extend(key, times_us, values)

    def _answer(self, question: Mapping[str, Any]) -> Value:
        if question["kind"] == "dump":
            try:
                return {"path": self._dump()}
            except (OSError, NodeError, redis.RedisError) as error:
                return {"failure": str(error)}
        return answer_question(self.store, question)

    def _dump(self) -> str:
        """Write a dump, of this node or of all, and return its path."""
        start_us = round((self._clock() - self._settings.default_tmdb_window) * SECOND_US)
        if self._settings.dump_node == self._host:
            asker = NodeAsker(self._session.client, self._session.endpoint)
            events = self._events.between(0, ALL_TIME_US)
            path = dump_nodes(asker, self._settings.dump_dir, self._clock(), start_us, events)
        else:
            series = self.store.read(sorted(self.store.metrics()), start_us, ALL_TIME_US)
            told = series_of_events(self._events.between(0, ALL_TIME_US))
            path = write_dump(self._settings.dump_dir, self._host, self._clock(), chain(series, told))
        return str(path)

    def _keep(self) -> None:
        """Trim the store, publish rollups, dump: each in its time."""
        rolled_up_us = self._last_whole_interval_us()
        dumped_s = self._clock()
        while not self._ended.wait(TRIM_INTERVAL_S):
            self.store.trim()
            while rolled_up_us < self._last_whole_interval_us():
                rolled_up_us += INTERVAL_US
                self._publish(roll_up(self.store, rolled_up_us))
            interval_s = self._settings.dump_interval
            if interval_s and self._clock() - dumped_s >= interval_s and self._settings.dump_node in {"", self._host}:
                dumped_s = self._clock()
                self._dump_or_complain()

    def _last_whole_interval_us(self) -> int:
        until_us = round((self._clock() - ROLLUP_DELAY_S) * SECOND_US)
        return until_us - until_us % INTERVAL_US - INTERVAL_US

    def _publish(self, rollups: bytes) -> None:
        try:
            self._session.client.publish(self._session.endpoint.key(ROLLUPS), rollups)
        except redis.RedisError as error:
            _log.info("ten seconds of rollups are lost: %s", error)

    def _dump_or_complain(self) -> None:
        try:
            self._dump()
        except (OSError, NodeError, redis.RedisError) as error:
            _log.warning("the dump could not be written: %s", error)
