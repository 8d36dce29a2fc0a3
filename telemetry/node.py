"""One node's telemetry: its sample store, the socket that fills it, its answers to queries, its rollups and dumps."""

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

from laggard.kvstore.codec import Value
from laggard.kvstore.connection import Session
from laggard.kvstore.sample_store import SampleStore
from laggard.telemetry.batches import Batch, Ingest, socket_name
from laggard.telemetry.bus import NodeAnswerer, NodeAsker
from laggard.telemetry.dump import dump_nodes, write_dump
from laggard.telemetry.errors import NodeError
from laggard.telemetry.events import EventLog, series_of_events
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.rollups import INTERVAL_US, ROLLUPS, roll_up
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.sources import answer_question

__all__ = ["NodeTelemetry"]

_log = logging.getLogger("laggard.telemetry")

TRIM_INTERVAL_S = 2.0
# A sample that arrives later than this after the end of its interval is not in the rollup.
ROLLUP_DELAY_S = 1.0
STOP_DEADLINE_S = 3.0


class NodeTelemetry:
    """Runs a node's telemetry during the ``with`` block.

    Parameters
    ----------
    session
        The node's environment and its connection to the state server.
    settings
        The job's settings.
    clock
        Returns Unix time in seconds.

    Attributes
    ----------
    store
        The node's samples; collectors in this process add to it directly.
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
        self._keeper.join(STOP_DEADLINE_S)  # a dump in progress needs answers to its questions
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
        """Write a dump, of this node or of all nodes, and return its path."""
        start_us = round((self._clock() - self._settings.default_tmdb_window) * SECOND_US)
        if self._settings.dump_node == self._host:
            asker = NodeAsker(self._session.client, self._session.endpoint)
            path = dump_nodes(
                asker, self._settings.dump_dir, self._clock(), start_us, self._events.between(0, ALL_TIME_US)
            )
        else:
            series = self.store.read(sorted(self.store.metrics()), start_us, ALL_TIME_US)
            events = series_of_events(self._events.between(0, ALL_TIME_US))
            path = write_dump(self._settings.dump_dir, self._host, self._clock(), chain(series, events))
        return str(path)

    def _keep(self) -> None:
        """Trim the store, publish rollups and write dumps, each when it is due."""
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
                self._dump_or_warn()

    def _last_whole_interval_us(self) -> int:
        until_us = round((self._clock() - ROLLUP_DELAY_S) * SECOND_US)
        return until_us - until_us % INTERVAL_US - INTERVAL_US

    def _publish(self, rollups: bytes) -> None:
        try:
            self._session.client.publish(self._session.endpoint.key(ROLLUPS), rollups)
        except redis.RedisError as error:
            _log.info("lost the rollups of one interval: %s", error)

    def _dump_or_warn(self) -> None:
        try:
            self._dump()
        except (OSError, NodeError, redis.RedisError) as error:
            _log.warning("cannot write the dump: %s", error)
