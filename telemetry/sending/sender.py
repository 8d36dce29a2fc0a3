"""Telemetry: the program's own metrics, buffered in the process and sent to its node's store in the background.

The calling thread only appends to a buffer. A background thread empties it ten times a second: it groups the samples by
series and sends one batch (:mod:`laggard.telemetry.sending.batches`) over the node's socket.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np

from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.errors import NotInJobError
from laggard.kvstore.series.sample_store import SeriesKey
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.catalogue import STEP
from laggard.telemetry.sending.batches import Batch, encode_batch, short_path, socket_name
from laggard.telemetry.sending.numbers import (
    AHEAD_S,
    NOT_IN_JOB,
    NotANumberError,
    Pending,
    number_of,
    oldest_s,
)

_log = logging.getLogger("laggard.telemetry")

FLUSH_INTERVAL_S = 0.1
PENDING_INTERVAL_S = 0.01
BUFFER_SAMPLES = 200_000
FINALIZE_DEADLINE_S = 2.0
SEND_TIMEOUT_S = 1
_SEND_TIMEOUT = struct.pack("ll", SEND_TIMEOUT_S, 0)  # a struct timeval
BATCH_SAMPLES = 50_000
PROCESS_TAG = "process"
# Maximum length of a name; the rest of OpenTSDB's rule is applied to names that come from outside.
MAX_NAME = 256
# The limit of a node's store.
MAX_SERIES = 20_000
_LONGEST_SHOWN, _LONGEST_REASON = 80, 300

# Stands for the number of the process that sends: one that was forked has another than the one it was forked from.
_THIS_PROCESS = "\0"

_now = time.time
_Tags = tuple[tuple[str, str], ...]
_Sample = tuple[Any, Any, Any, _Tags, float, float | Pending]
"""Metric, tag key and value, tags of the sender, time, value: names as the program gave them, not validated yet."""


class Telemetry:
    """Sends the program's own metrics, from any process on any node of the job.

    :meth:`add_data` never waits and never raises: samples are buffered and sent in the background; if the buffer is
    full, the oldest are dropped and counted in :attr:`dropped`. Outside a laggard job the level is 0 and everything is
    dropped.

    Parameters
    ----------
    per_process
        Keep this process's samples apart from those of other processes of the node with the same metric, by a tag
        ``process`` with the process id.
    tags
        Tags of all samples that are sent with this object, in addition to ``host``.
    """

    def __init__(self, *, per_process: bool = False, tags: Mapping[str, str] | None = None) -> None:
        self._level = 0
        of_process = {PROCESS_TAG: _THIS_PROCESS} if per_process else {}
        self._tags = tuple({**of_process, **(tags or {})}.items())
        self._began_s = 0.0  # the job
        with contextlib.suppress(NotInJobError):
            environment = JobEnvironment.current()
            self._level, self._began_s = environment.telemetry_level, environment.began_s
        self._buffer = _sender().buffer if self._level else deque[_Sample](maxlen=0)
        self._step: float | None = None  # the newest that was sent

    @property
    def level(self) -> int:
        """The launch's telemetry level: a metric is kept if its own level is at most this."""
        return self._level

    @property
    def dropped(self) -> int:
        """How many samples this process dropped because the buffer was full or they were not valid."""
        return _sender().dropped if self._level else 0

    def add_data(
        self,
        ts_metric_name: str,
        ts_data: Any,
        timestamp: float | None = None,
        telemetry_level: int = 1,
        tagk: str | None = None,
        tagv: str | None = None,
        *,
        step: float | None = None,
    ) -> None:
        """Add one sample.

        Parameters
        ----------
        ts_metric_name
            Name of the metric.
        ts_data
            The value: a number, or an array or tensor with one element. It is read during the call; a tensor on a GPU
            is copied in the background, and the call does not wait for the GPU.
        timestamp
            Unix time in seconds; ``None``: now. One of before the job, of more than a day ago or ahead of the clock is
            refused, and said once: a step is not a time.
        telemetry_level
            The metric's level, 1 to 4; above the launch's level the sample is dropped, at no cost.
        tagk, tagv
            A tag of this sample, in addition to ``host``, which is always the node.
        step
            The step of the training that the value is of, counted over the whole job: the page draws metrics along it.
            It is sent as a metric ``step`` with the same tags, once for each step.
        """
        try:
            if telemetry_level > self._level:
                return
        except Exception:  # noqa: BLE001 - not a number, such as an array: no launch has a level that keeps it
            return
        try:
            if type(ts_data) is not float:
                ts_data = number_of(ts_data)
            if timestamp is None:
                timestamp = _now()
            elif not (type(timestamp) is float and -AHEAD_S <= _now() - timestamp <= AHEAD_S):
                timestamp = _moment(timestamp, self._began_s)
        except NotANumberError as error:
            if self._level:
                _sender().refuse(ts_metric_name, str(error))
            return
        buffer = self._buffer
        if len(buffer) == BUFFER_SAMPLES:
            _sender().overflow()  # the buffer itself drops the oldest
        buffer.append((ts_metric_name, tagk, tagv, self._tags, timestamp, ts_data))
        if step is not None and (type(step) is not int or step != self._step):  # nothing of the program is compared
            self._step = step
            self.add_data(STEP, step, timestamp, telemetry_level, tagk, tagv)

    def finalize(self) -> None:
        """Send what is buffered, waiting at most two seconds."""
        if self._level:
            _sender().flush()


class BatchSocket:
    """A connection to a node's store, opened on first use and again after a failure."""

    def __init__(self, path: Path) -> None:
        self._path = path  # the node's socket
        self._socket: socket.socket | None = None

    def send(self, batch: Batch) -> bool:
        """Send a batch; return whether the store took it."""
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.sendall(encode_batch(batch))
        except OSError:
            self.close()  # the receiver discards an incomplete batch
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel enforces the timeout, and sends a whole batch in one call. With Python's timeout it would take
            # some twenty calls, and after each a busy program would hold the interpreter lock for another 5 ms.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
            with short_path(self._path) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            raise
        return connection


class _Sender:
    """The buffer of this process and the thread that empties it."""

    def __init__(self, environment: JobEnvironment) -> None:
        self.buffer: deque[_Sample] = deque(maxlen=BUFFER_SAMPLES)
        self._told_full = False
        self._node = environment.node
        self._path = environment.endpoint_file.parent / socket_name(environment.node)
        self._keys: dict[tuple[Any, ...], SeriesKey | None] = {}
        self._refused: set[str] = set()  # metrics
        self._begin()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._begin)
        self._end_with_child()
        util.register_after_fork(self, _Sender._end_with_child)

    def _begin(self) -> None:
        """Start with nothing to send: in a forked child, the parent sends what is buffered."""
        self.dropped = 0
        self.buffer.clear()
        self._keys.clear()
        self._unsent: Batch = {}
        self._pending: list[_Sample] = []  # whose numbers a GPU has not computed yet
        self._socket = BatchSocket(self._path)
        self._lock = threading.Lock()
        threading.Thread(target=self._send_always, name="telemetry", daemon=True).start()

    def _end_with_child(self) -> None:
        """End when a child of `multiprocessing` ends, too, which calls nothing that is registered with `atexit`."""
        util.Finalize(None, self._end, exitpriority=0)

    def flush(self) -> None:
        """Send all that is buffered, within the deadline."""
        until_s = time.monotonic() + FINALIZE_DEADLINE_S
        if self._lock.acquire(timeout=FINALIZE_DEADLINE_S):
            try:
                while (self._can_send() or self._pending) and time.monotonic() < until_s:
                    if not self._can_send():
                        time.sleep(PENDING_INTERVAL_S)
                    elif not self._send_batch():
                        if not self._path.exists():
                            break  # the node has no store
                        time.sleep(FLUSH_INTERVAL_S)
            finally:
                self._lock.release()

    def _end(self) -> None:
        """Send what is buffered; what cannot be sent any more is counted, and said."""
        self.flush()
        with self._lock:  # what is counted is not sent after all
            left = sum(len(times) for times, _ in self._unsent.values()) + len(self.buffer) + len(self._pending)
            self.buffer.clear()
            self._unsent, self._pending = {}, []
        if left:
            self.dropped += left
            words = "%d samples are lost: the telemetry of %s had not taken them when this process ended"
            _log.warning(words, left, self._node)

    def _send_always(self) -> None:
        while True:
            time.sleep(FLUSH_INTERVAL_S)
            with self._lock:
                while self._can_send() and self._send_batch():
                    continue

    def overflow(self) -> None:
        """Count a sample that is dropped for lack of room; the first is said."""
        self.dropped += 1
        if not self._told_full:
            self._told_full = True
            words = "the node takes samples too slowly: the oldest of %d are dropped, and counted in telemetry.dropped"
            _log.warning(words, BUFFER_SAMPLES)

    def refuse(self, metric: Any, reason: str) -> None:
        """Drop a sample; its reason is logged if it is the metric's first."""
        self.dropped += 1
        if isinstance(metric, str) and metric not in self._refused and len(self._refused) < MAX_SERIES:
            self._refused.add(metric)
            shown = metric[:_LONGEST_SHOWN], reason[:_LONGEST_REASON]
            _log.warning("dropping samples of %r that add_data cannot keep, such as this one: %s", *shown)

    def _can_send(self) -> bool:
        return bool(self.buffer or self._unsent or any(map(_is_ready, self._pending)))

    def _send_batch(self) -> bool:
        if not self._unsent:
            self._unsent = self._grouped(self._taken())
        if not self._socket.send(self._unsent):
            return False
        self._unsent = {}
        return True

    def _taken(self) -> list[_Sample]:
        """Take what is buffered, up to a batch; what a GPU has not computed yet is taken later."""
        pop = self.buffer.popleft
        taken = [pop() for _ in range(min(len(self.buffer), BATCH_SAMPLES))]
        pending = [*self._pending, *(sample for sample in taken if isinstance(sample[-1], Pending))]
        if not pending:
            return taken
        samples = [sample for sample in taken if not isinstance(sample[-1], Pending)]
        self._pending = []
        for sample in pending:
            number = sample[-1]
            if isinstance(number, Pending) and not number.ready:
                self._pending.append(sample)
            elif isinstance(number, Pending):
                samples.append((*sample[:-1], number.value()))
        return samples

    def _grouped(self, samples: Iterable[_Sample]) -> Batch:
        """Group samples by series."""
        by_name: dict[tuple[Any, ...], tuple[list[Any], list[Any]]] = {}
        for metric, tagk, tagv, own, time_s, value in samples:
            name = (metric, tagk, tagv, own)
            try:
                columns = by_name.get(name)
            except Exception:  # noqa: BLE001 - a name that cannot be hashed, such as a list
                self.dropped += 1
                continue
            if columns is None:
                columns = by_name[name] = ([], [])
            columns[0].append(time_s)
            columns[1].append(value)
        keyed: dict[SeriesKey, tuple[list[Any], list[Any]]] = {}
        for name, columns in by_name.items():
            if (key := self._key(name)) is None:
                self.dropped += len(columns[0])
            else:
                keyed[key] = columns
        return dict(zip(keyed, _numbers(list(keyed.values())), strict=True))

    def _key(self, name: tuple[Any, ...]) -> SeriesKey | None:
        if name not in self._keys:
            if len(self._keys) == MAX_SERIES:
                return None  # for example a new name in each step: useless, and it would fill the memory
            metric, tagk, tagv, own = name
            tags = dict(own)
            if tagk is not None and tagv is not None:
                tags[_text(tagk)] = _text(tagv)
            tags["host"] = self._node
            if tags.get(PROCESS_TAG) == _THIS_PROCESS:
                tags[PROCESS_TAG] = str(os.getpid())
            parts = [metric, *(part for pair in tags.items() for part in pair)]
            valid = all(map(_is_name, parts))
            self._keys[name] = (metric, tuple(sorted(tags.items()))) if valid else None
            if not valid:
                shown = [_text(part)[:_LONGEST_SHOWN] for part in (metric, tagk, tagv)]
                _log.warning("dropping the samples of %r with the tag %r=%r: not a valid name", *shown)
        return self._keys[name]


def _numbers(series: Sequence[tuple[list[float], list[float]]]) -> list[tuple[Times, Floats]]:
    """Convert all series at once: beside a busy program each call into NumPy may cost 5 ms."""
    times_s, numbers = (np.array([number for pair in series for number in pair[which]], float) for which in (0, 1))
    times_us = np.rint(times_s * 1e6).astype(np.int64)
    ends = accumulate((len(times) for times, _ in series), initial=0)
    return [(times_us[begin:end], numbers[begin:end]) for begin, end in pairwise(ends)]


def _text(part: object) -> str:
    """Return a name as text; empty, which is no name: a program's object may raise anything."""
    try:
        return str(part)
    except Exception:  # noqa: BLE001
        return ""


def _is_name(part: object) -> bool:
    if not isinstance(part, str) or not 0 < len(part) <= MAX_NAME:
        return False
    try:
        part.encode()
    except UnicodeEncodeError:  # an unpaired surrogate is not valid text
        return False
    return True


def _moment(timestamp: object, began_s: float) -> float:
    """Return a sample's time, of a job that began then."""
    time_s, now_s = number_of(timestamp), _now()
    if isinstance(time_s, Pending) or not oldest_s(began_s, now_s) <= time_s <= now_s + AHEAD_S:
        given = _text(timestamp)[:_LONGEST_SHOWN]
        raise NotANumberError(f"its timestamp, the third argument, is {given}, which is {NOT_IN_JOB}")
    return time_s


def _is_ready(sample: _Sample) -> bool:
    number = sample[-1]
    return isinstance(number, Pending) and number.ready


@cache
def _sender() -> _Sender:
    return _Sender(JobEnvironment.current())
