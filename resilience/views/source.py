"""Reads a running job: its journal and probe times from the state server, the rest from its nodes' telemetry."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

import redis

from laggard.collectors.device import DeviceId
from laggard.collectors.probe_metrics import PROBE_TIME, RESERVE_PROBE_TIME
from laggard.kvstore.series.streams import Refused, Series
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.resilience.errors import UsageError
from laggard.resilience.record.journal import OtherFormatError, published_entries
from laggard.resilience.record.running_jobs import RunningJob
from laggard.resilience.record.timeline import Timeline, timeline_of_entries
from laggard.resilience.views.snapshot import (
    DEVICE_READINGS,
    NODE_READINGS,
    RATES,
    DeviceState,
    Readings,
    Snapshot,
    compose,
)
from laggard.telemetry.course import JobBegan
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.gathering import gather

# For devices in use and in reserve; the kernel is the same.
PROBES = (PROBE_TIME, RESERVE_PROBE_TIME)
# Of what comes whenever a detector or the program likes: a detector that probes rarely does so once a minute.
BACK_S = 60.0
# Of what nodes and devices are asked for every second or two: older readings are out of date.
RECENT_S = 10.0
HISTORY_S = 300.0  # of one device's readings
HISTORY = 60  # probe times of a device: of a minute, if it is probed every second
MAX_METRICS = 50  # as many as a screen has lines
ANSWER_DEADLINE_S = 5.0
_SECOND_US = 1_000_000


class LiveSource:
    """A connection to a running job."""

    def __init__(self, job: RunningJob) -> None:
        self._client = job.endpoint.connect(timeout_s=ANSWER_DEADLINE_S)
        self._series = Series(self._client, job.endpoint, launch=0)
        self._nodes = NodeAsker(self._client, job.endpoint)
        self._last_ids = dict.fromkeys(PROBES, f"{round((time.time() - BACK_S) * 1000)}-0")
        self._probes: dict[DeviceId, deque[float]] = {}
        self._models: dict[DeviceId, str] = {}
        self._job = job  # the job to read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def snapshot(self) -> Snapshot:
        """Return the current status of the job."""
        job, timeline = _course(self._client, self._job)
        self._read_probes()
        return compose(timeline, self._readings(job.level), time.time(), level=job.level, port=job.port)

    def history(self, device: DeviceState) -> Mapping[str, Sequence[float]]:
        """Return the readings of a device in the last minutes, oldest first, by the names of a snapshot."""
        if not device.readings:
            return {}
        now_us, names = round(time.time() * _SECOND_US), {each.metric: each.name for each in DEVICE_READINGS}
        tags = {"host": device.host, "gpu": device.gpu}
        found = gather(self._nodes, names, now_us - round(HISTORY_S * _SECOND_US), now_us, tags=tags)
        return {names[each.metric]: each.values.tolist() for each in found.series}

    def _read_probes(self) -> None:
        for metric in PROBES:
            for sample_id, sample in self._series.read(metric, self._last_ids[metric]):
                self._last_ids[metric] = sample_id
                if isinstance(sample, Refused):
                    continue
                device = sample.tags["host"], sample.tags.get("gpu", "")
                self._models[device] = sample.tags.get("model", "")
                self._probes.setdefault(device, deque(maxlen=HISTORY)).append(min(sample.values))

    def _readings(self, level: int) -> Readings:
        if level == 0:
            return Readings(probes=self._probes, models=self._models)
        now_us = round(time.time() * _SECOND_US)
        of_devices = [each.metric for each in DEVICE_READINGS] if level >= 3 else []
        wanted = [*of_devices, *(NODE_READINGS if level >= 2 else ())]
        found = gather(self._nodes, wanted, now_us - round(RECENT_S * _SECOND_US), now_us)
        devices: dict[DeviceId, dict[str, float]] = {}
        nodes: dict[str, dict[str, float]] = {}
        for each in found.series:
            value = _per_second(each) if each.metric in RATES else float(each.values[-1])
            if each.metric not in NODE_READINGS:
                devices.setdefault((each.tags["host"], each.tags["gpu"]), {})[each.metric] = value
            elif math.isfinite(value):
                nodes.setdefault(each.tags["host"], {})[each.metric] = value
        return Readings(devices, nodes, self._probes, self._models, self._metrics(now_us), found.missing)

    def _metrics(self, now_us: int) -> dict[str, list[float]]:
        """Return the newest values of the program's own metrics."""
        question = {"kind": "program", "metrics": [], "start_us": now_us, "end_us": now_us}
        replies = self._nodes.ask(question).by_host.values()
        names = sorted({name for reply in replies for name in reply["n_series"]})[:MAX_METRICS]
        values: dict[str, list[float]] = {}
        for each in gather(self._nodes, names, now_us - round(BACK_S * _SECOND_US), now_us).series:
            values.setdefault(each.metric, []).append(float(each.values[-1]))
        return values


def _per_second(counts: TimeSeries) -> float:
    """Return how fast a counter has grown; NaN if it was read only once, or has begun anew."""
    grown, length_us = counts.values[-1] - counts.values[0], counts.times_us[-1] - counts.times_us[0]
    return float(_SECOND_US * grown / length_us) if length_us > 0 and grown >= 0 else math.nan


def running_timeline(job: RunningJob) -> Timeline:
    """Return the course of a running job so far."""
    with job.endpoint.connect(timeout_s=ANSWER_DEADLINE_S) as client:
        return _course(client, job)[1]


def _course(client: redis.Redis, job: RunningJob) -> tuple[JobBegan, Timeline]:
    try:
        entries = published_entries(client, job.endpoint)
    except OtherFormatError as error:
        raise UsageError(
            f"{job.full_name} was started by another version of laggard (its {error}): use the version that started it"
        ) from error
    if not entries or not isinstance(begun := entries[0].record, JobBegan):
        raise UsageError(f"{job.full_name} has only just started: try again in a few seconds")
    return begun, timeline_of_entries(entries)
