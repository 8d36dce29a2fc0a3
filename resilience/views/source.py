"""Reads a running job: what happened from its journal, probes from its series, the rest from its nodes' telemetry."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

from detectors.part import PART
from detectors.slow_gpu import SlowGPUDetector
from kvstore.series import Series
from resilience.options import UsageError
from resilience.record.journal import FORMAT, published_entries
from resilience.record.story import story_of_entries
from resilience.reserve_probe import METRIC as RESERVE_PROBE
from resilience.views.discovery import RunningJob
from resilience.views.snapshot import DEVICE_READINGS, NODE_READINGS, Device, Readings, Snapshot, compose
from telemetry.bus import NodeAsker
from telemetry.catalogue import CATALOGUE
from telemetry.gathering import gather

__all__ = ["LiveSource"]

# The devices in use, and those of the reserve: the same kernel.
PROBES = (SlowGPUDetector.metric_name, RESERVE_PROBE)
PROBES_BACK_S = 60.0
# A reading that is older than this is no longer how things stand.
RECENT_S = 10.0
METRICS_BACK_S = 60.0
HISTORY = 60
MAX_METRICS = 50
NAMES_INTERVAL_S = 10.0
ANSWER_DEADLINE_S = 5.0
_SECOND_US = 1_000_000


class LiveSource:
    """A connection to a running job.

    Parameters
    ----------
    job
        Which one.
    """

    def __init__(self, job: RunningJob) -> None:
        self._endpoint = job.endpoint
        self._client = job.endpoint.connect(timeout_s=ANSWER_DEADLINE_S)
        self._series = Series(self._client, job.endpoint, launch=0)
        self._nodes = NodeAsker(self._client, job.endpoint)
        self._last_ids = dict.fromkeys(PROBES, f"{round((time.time() - PROBES_BACK_S) * 1000)}-0")
        self._probes: dict[Device, deque[float]] = {}
        self._models: dict[Device, str] = {}
        self._utilization: dict[Device, deque[float]] = {}
        self._names: list[str] = []
        self._names_due_s = 0.0
        self._job = job

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def snapshot(self) -> Snapshot:
        """Return how the job stands.

        Raises
        ------
        redis.RedisError
            If its state server does not answer: it has ended, or its server is being restarted.
        NodeError
            If a node has too many samples.
        UsageError
            If the job is of a newer version of laggard, or has only just begun.
        """
        entries = published_entries(self._client, self._endpoint)
        if not entries:
            raise UsageError(f"{self._job.full_name} has only just begun: ask again in a few seconds")
        job = entries[0].fields
        if job["format"] != FORMAT:
            raise UsageError(
                f"{self._job.full_name} is of another version of laggard (format {job['format']!r}, this one reads "
                f"{FORMAT}): use the laggard that started it"
            )
        self._read_probes()
        return compose(
            story_of_entries(entries), self._readings(job["level"]), time.time(), level=job["level"], port=job["port"]
        )

    def _read_probes(self) -> None:
        for metric in PROBES:
            for sample_id, sample in self._series.read(metric, self._last_ids[metric]):
                self._last_ids[metric] = sample_id
                device = sample.tags["host"], sample.tags.get("gpu", "")
                self._models[device] = sample.tags.get("model", "")
                self._probes.setdefault(device, deque(maxlen=HISTORY)).append(min(sample.values))

    def _readings(self, level: int) -> Readings:
        if level == 0:
            return Readings(probes=self._probes, models=self._models)
        now_us = round(time.time() * _SECOND_US)
        wanted = [*(DEVICE_READINGS if level >= 3 else ()), *(NODE_READINGS if level >= 2 else ())]
        found = gather(self._nodes, wanted, now_us - round(RECENT_S * _SECOND_US), now_us)
        devices: dict[Device, dict[str, float]] = {}
        nodes: dict[str, dict[str, float]] = {}
        for each in found.series:
            value = float(each.values[-1])
            if each.metric in NODE_READINGS:
                nodes.setdefault(each.tags["host"], {})[each.metric] = value
            else:
                devices.setdefault((each.tags["host"], each.tags["gpu"]), {})[each.metric] = value
        for device, values in devices.items():
            if "DeviceUtilization" in values:
                self._utilization.setdefault(device, deque(maxlen=HISTORY)).append(values["DeviceUtilization"])
        return Readings(
            devices, nodes, self._probes, self._models, self._utilization, self._metrics(now_us), found.missing
        )

    def _metrics(self, now_us: int) -> dict[str, list[float]]:
        """Return the newest values of the program's own metrics; their names are asked for only now and then."""
        if time.monotonic() >= self._names_due_s:
            self._names_due_s = time.monotonic() + NAMES_INTERVAL_S
            replies = self._nodes.ask({"kind": "keys", "metric": ""})
            names = {metric for reply in replies.by_host.values() for metric, _ in reply}
            self._names = sorted(name for name in names - set(CATALOGUE) if not _is_probe(name))[:MAX_METRICS]
        values: dict[str, list[float]] = {}
        for each in gather(self._nodes, self._names, now_us - round(METRICS_BACK_S * _SECOND_US), now_us).series:
            values.setdefault(each.metric, []).append(float(each.values[-1]))
        return values


def _is_probe(metric: str) -> bool:
    return metric.partition(PART)[0] in PROBES
