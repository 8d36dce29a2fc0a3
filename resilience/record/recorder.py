"""Keeps a job's record up to date while it runs: publishes the journal at once, thins what is measured into a dump.

All of it happens in a thread of its own and may fail without harm to the job: what could not be read is missing.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import redis

from kvstore.endpoint import Endpoint
from kvstore.errors import KVStoreError
from kvstore.series import Series
from resilience.record.journal import Journal
from resilience.record.thinning import Thinned
from telemetry.bus import NodeAsker, NodeError
from telemetry.dump import write_dump
from telemetry.gathering import gather

__all__ = ["UTILIZATION", "Recorder"]

_log = logging.getLogger("laggard.resilience")

UTILIZATION = "DeviceUtilization"
"""What is kept of the devices' telemetry, beside the readings that detectors judge."""
SAMPLES = "samples"
INTERVAL_S = 2.0
LOOK_BACK_S = 60.0
FIRST_SAVE_S = 10.0
SAVE_INTERVAL_S = 60.0
# At most this share of time goes into saving.
SAVE_SHARE = 0.02
STOP_DEADLINE_S = 3.0
_SECOND_US = 1_000_000


class Recorder:
    """Runs for as long as the ``with`` block lasts.

    Parameters
    ----------
    endpoint
        The job's state server.
    journal
        What is published there.
    folder
        Where the samples go; ``None``: none are kept.
    level
        Telemetry level of the job.
    """

    def __init__(self, endpoint: Endpoint, journal: Journal, folder: Path | None, level: int) -> None:
        self._endpoint = endpoint
        self._client = endpoint.connect()
        self._journal = journal
        self._folder = folder
        self._level = level
        self._series = Series(self._client, endpoint, launch=0)
        self._nodes = NodeAsker(self._client, endpoint)
        now_s = time.time()
        self._thinned = Thinned(round(now_s * _SECOND_US))
        self._read_until_us = round(now_s * _SECOND_US)
        self._last_ids: dict[str, str] = {}
        self._first_id = f"{round(now_s * 1000)}-0"
        self._saved: Path | None = None
        self._save_due_s = time.monotonic() + FIRST_SAVE_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._journal.news.set()
        self._thread.join(STOP_DEADLINE_S)
        self._save()

    def _run(self) -> None:
        due_s = 0.0
        while not self._ended.is_set():
            self._journal.news.clear()
            due = time.monotonic() >= due_s
            if due:
                due_s = time.monotonic() + INTERVAL_S
            try:
                self._journal.publish(self._client, self._endpoint)
                if due and self._folder is not None:
                    self._read_probes()
                    self._read_devices()
            except (redis.RedisError, KVStoreError, NodeError) as error:
                _log.info("a part of the job's record is missing: %s", error)
            if time.monotonic() > self._save_due_s:
                self._save()
            self._journal.news.wait(max(0.0, due_s - time.monotonic()))

    def _read_probes(self) -> None:
        for metric in self._series.metrics():
            for sample_id, sample in self._series.read(metric, self._last_ids.get(metric, self._first_id)):
                self._last_ids[metric] = sample_id
                time_us = np.array([round(sample.time_s * _SECOND_US)], dtype=np.int64)
                self._thinned.add(metric, sample.tags, time_us, np.array([min(sample.values)]))

    def _read_devices(self) -> None:
        if self._level < 3:
            return
        now_us = round(time.time() * _SECOND_US)
        start_us = max(self._read_until_us, now_us - round(LOOK_BACK_S * _SECOND_US))
        for each in gather(self._nodes, [UTILIZATION], start_us, now_us - 1).series:
            self._thinned.add(each.metric, each.tags, each.times_us, each.values)
        self._read_until_us = now_us

    def _save(self) -> None:
        if self._folder is None:
            return
        begun_s = time.monotonic()
        old = self._saved
        try:
            self._saved = write_dump(str(self._folder), SAMPLES, time.time(), self._thinned.series())
            if old is not None and old != self._saved:
                old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the samples of the job's record could not be written: %s", error)
        now_s = time.monotonic()
        self._save_due_s = now_s + max(SAVE_INTERVAL_S, (now_s - begun_s) / SAVE_SHARE)
