"""Keeps a job's record up to date while it runs: publishes the journal, and downsamples telemetry into a dump.

It works in a thread of its own, and a failure does no harm to the job: samples that could not be read are missing. As
the job grows longer, samples are averaged over longer intervals, so the size of the dump is bounded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import redis

from laggard.collectors.links.collector import LINK_TIME
from laggard.collectors.silences import Silences
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.control import Control, nodes_in_use
from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.series.streams import Refused, Series
from laggard.kvstore.state.mapping import State
from laggard.resilience.record.downsampler import Downsampler
from laggard.resilience.record.error_log import ErrorLog
from laggard.resilience.record.journal import Journal
from laggard.resilience.record.newest_links import LinkLog
from laggard.resilience.record.own_metrics import MAX_DELAY_S, OwnMetrics
from laggard.resilience.record.progress_log import ProgressLog
from laggard.resilience.text import abbreviated
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.errors import NodeError
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.gathering import gather

_log = logging.getLogger("laggard.resilience")
UTILIZATION = "DeviceUtilization"
"""The one metric of the devices' telemetry that is kept, beside the probe times and the program's own metrics."""
SAMPLES = "samples"
INTERVAL_S = 2.0
# The nodes are asked for the program's own metrics at first as often as for the rest, since a job may be short.
OWN_METRICS_INTERVAL_S = 5.0
OWN_METRICS_SHARE = 0.05
PROGRESS_INTERVAL_S = 0.5
LOOK_BACK_S = 60.0
FIRST_SAVE_S = 10.0
SAVE_INTERVAL_S = 60.0
# Saving takes at most this share of the time.
SAVE_SHARE = 0.02
STOP_DEADLINE_S = 3.0
_SECOND_US = 1_000_000
_OF_SILENCES = ("its telemetry does not answer: the record lacks what it reads", "its telemetry answers again")


class Recorder:
    """Keeps the record of a job for the length of a ``with`` block."""

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal,
        progress: ProgressLog,
        errors: ErrorLog,
        folder: Path | None,
        level: int,
        tell: Callable[[str], object] = lambda _: None,
        *,
        silent_after_s: float = MAX_DELAY_S,
    ) -> None:
        self._endpoint = endpoint  # the job's state server
        self._client = endpoint.connect()
        self._journal = journal  # the journal to publish there
        self._progress = progress  # is shown how far the current launch has come, twice a second
        self._errors = errors  # what the program writes to standard error
        self._folder = folder  # folder for the samples; `None`: none are kept
        self._level = level  # telemetry level of the job
        self._tell = tell  # is told what the record lacks
        self._silent_after_s = silent_after_s  # so long what a node has read is waited for
        self._silences, self._silent = Silences(), set[str]()
        self._series = Series(self._client, endpoint, launch=0)
        self._nodes = NodeAsker(self._client, endpoint)
        now_s = time.time()
        self._samples = Downsampler(round(now_s * _SECOND_US))
        self._own_metrics = OwnMetrics(self._nodes, round(now_s * _SECOND_US))
        self._links = LinkLog()
        self._own_metrics_due_s = 0.0
        self._began_s = time.monotonic()
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

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._journal.changed.set()
        self._thread.join(STOP_DEADLINE_S)
        self._progress.close()
        if not self._thread.is_alive():
            self._own_metrics.settle(round(time.time() * _SECOND_US))
        self._save()

    def _run(self) -> None:
        due_s = progress_due_s = 0.0
        while not self._ended.is_set():
            self._journal.changed.clear()
            due = time.monotonic() >= due_s
            if due:
                due_s = time.monotonic() + INTERVAL_S
            try:
                if time.monotonic() >= progress_due_s:
                    progress_due_s = time.monotonic() + PROGRESS_INTERVAL_S
                    self._read_progress()
                self._journal.publish(self._client, self._endpoint)
                if self._level > 0:
                    self._errors.publish(self._client, self._endpoint)
                if due and self._folder is not None:
                    self._read_probes()
                    self._read_devices()
                    self._read_own_metrics()
            except (redis.RedisError, KVStoreError, NodeError) as error:
                _log.info("part of the job's record is missing: %s", error)
            except Exception:  # noqa: BLE001 - a record with a gap is better than none
                _log.exception("part of the job's record is missing")
            if time.monotonic() > self._save_due_s:
                self._save()
            self._journal.changed.wait(max(0.0, min(due_s, progress_due_s) - time.monotonic()))

    def _read_progress(self) -> None:
        launch = current_launch(self._client, self._endpoint)
        if launch is not None:
            commits = State(self._client, self._endpoint, launch, retry_for_s=0).commits()
            self._progress.see(launch, commits, Control(self._client, self._endpoint, launch).read_progress())

    def _read_probes(self) -> None:
        for metric in self._series.metrics():
            for sample_id, sample in self._series.read(metric, self._last_ids.get(metric, self._first_id)):
                self._last_ids[metric] = sample_id
                if isinstance(sample, Refused):
                    continue
                if metric == LINK_TIME:
                    self._links.add(sample)
                    continue
                time_us = np.array([round(sample.time_s * _SECOND_US)], dtype=np.int64)
                self._samples.add(metric, sample.tags, time_us, np.array([min(sample.values)]))

    def _read_devices(self) -> None:
        if self._level < 3:
            return
        now_us = round(time.time() * _SECOND_US)
        start_us = max(self._read_until_us, now_us - round(LOOK_BACK_S * _SECOND_US))
        for each in gather(self._nodes, [UTILIZATION], start_us, now_us - 1).series:
            self._samples.add(each.metric, each.tags, each.times_us, each.values)
        self._read_until_us = now_us

    def _read_own_metrics(self) -> None:
        if self._level < 1 or time.monotonic() < self._own_metrics_due_s:
            return
        age_s = time.monotonic() - self._began_s
        self._own_metrics_due_s = time.monotonic() + min(OWN_METRICS_INTERVAL_S, age_s * OWN_METRICS_SHARE)
        now_us = round(time.time() * _SECOND_US)
        self._own_metrics.read(now_us)
        self._tell_of_silences(self._own_metrics.silent(now_us, self._silent_after_s))

    def _tell_of_silences(self, silent: set[str]) -> None:
        new, again = silent - self._silent, self._silent - silent
        if new:
            new &= nodes_in_use(self._client, self._endpoint)  # of others it was said that they are lost
        self._silent = self._silent & silent | new
        now, answering = ([(host, "") for host in hosts] for hosts in (new, again))
        for told, words in zip(self._silences.add(now, answering, time.monotonic()), _OF_SILENCES, strict=True):
            if told:
                self._tell(f"{abbreviated(sorted(host for host, _ in told))}: {words}")

    def _save(self) -> None:
        if self._folder is None:
            return
        begun_s = time.monotonic()
        old = self._saved
        parts = chain(self._samples.series(), self._links.series(), self._own_metrics.series())
        try:
            self._errors.save(self._folder)
            self._saved = write_dump(str(self._folder), SAMPLES, time.time(), parts)
            if old is not None and old != self._saved:
                old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot write the samples of the job's record: %s", error.strerror)
        now_s = time.monotonic()
        self._save_due_s = now_s + max(SAVE_INTERVAL_S, (now_s - begun_s) / SAVE_SHARE)
