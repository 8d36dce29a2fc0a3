"""Telemetry of the program: its own metrics, buffered and sent in the background."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from functools import cache

import redis

from kvstore.environment import JobEnvironment, NotInJobError
from kvstore.errors import FencedError
from kvstore.series import Sample, Series
from kvstore.session import current_session

__all__ = ["Telemetry"]

_log = logging.getLogger("laggard.telemetry")

FLUSH_INTERVAL_S = 0.25
BUFFER_SAMPLES = 100_000
FINALIZE_DEADLINE_S = 2.0


class Telemetry:
    """Sends the program's own metrics, from any process on any node of the job.

    :meth:`add_data` never waits and never raises for want of a server: samples are buffered and sent in the background;
    when the buffer is full the oldest are dropped and counted in :attr:`dropped`. Outside of a laggard job the level is
    0 and everything is dropped.
    """

    def __init__(self) -> None:
        try:
            environment = JobEnvironment.current()
        except NotInJobError:
            self._level, self._node = 0, ""
        else:
            self._level, self._node = environment.telemetry_level, environment.node

    @property
    def level(self) -> int:
        """The launch's telemetry level: a metric is kept if its own level is not above it."""
        return self._level

    @property
    def dropped(self) -> int:
        """How many samples this process had to drop."""
        return _sender().dropped if self._level else 0

    def add_data(
        self,
        ts_metric_name: str,
        ts_data: float,
        timestamp: float | None = None,
        telemetry_level: int = 1,
        tagk: str | None = None,
        tagv: str | None = None,
    ) -> None:
        """Add one sample.

        Parameters
        ----------
        ts_metric_name
            Name of the metric.
        ts_data
            The value.
        timestamp
            Unix time in seconds; ``None``: now.
        telemetry_level
            The metric's level, 1 to 4; above the launch's level the sample costs nothing and is dropped.
        tagk, tagv
            A tag beside ``host``.
        """
        if telemetry_level > self._level:
            return
        tags = {"host": self._node}
        if tagk is not None and tagv is not None:
            tags[tagk] = str(tagv)
        time_s = time.time() if timestamp is None else float(timestamp)
        _sender().add(Sample(ts_metric_name, time_s, (float(ts_data),), tags))

    def finalize(self) -> None:
        """Send what is buffered, within two seconds."""
        if self._level:
            _sender().flush()


class _Sender:
    """The buffer of this process and the thread that empties it."""

    def __init__(self) -> None:
        session = current_session()
        self._series = Series(session.client, session.endpoint, session.environment.launch)
        self._buffer: deque[Sample] = deque(maxlen=BUFFER_SAMPLES)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._send_always, name="telemetry", daemon=True)
        self._thread.start()
        atexit.register(self.flush)

    def add(self, sample: Sample) -> None:
        self.dropped += len(self._buffer) == BUFFER_SAMPLES
        self._buffer.append(sample)

    def flush(self) -> None:
        until_s = time.monotonic() + FINALIZE_DEADLINE_S
        if self._lock.acquire(timeout=FINALIZE_DEADLINE_S):
            try:
                while self._buffer and time.monotonic() < until_s and self._send_batch():
                    continue
            finally:
                self._lock.release()

    def _send_always(self) -> None:
        while not self._ended.wait(FLUSH_INTERVAL_S):
            with self._lock:
                while self._buffer and self._send_batch():
                    continue

    def _send_batch(self) -> bool:
        batch = [self._buffer.popleft() for _ in range(min(len(self._buffer), 1000))]
        try:
            self._series.add(batch)
        except FencedError:
            self._ended.set()  # this launch is over
        except redis.RedisError as error:
            self.dropped += len(batch)
            _log.warning("%d samples were dropped: %s", len(batch), error)
        else:
            return True
        return False


@cache
def _sender() -> _Sender:
    return _Sender()
