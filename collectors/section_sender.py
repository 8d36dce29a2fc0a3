"""Sends the times of a process's sections, once per interval: one sample of each section, its median.

For detectors they go to the state server, as the samples of collectors do; for people to the telemetry.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from laggard.collectors.device import visible_names
from laggard.collectors.group import STRIDE, SampleWriter
from laggard.collectors.sections import Section
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.environment import RANK_VARIABLES
from laggard.kvstore.control import Control
from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.series.streams import Sample

_log = logging.getLogger("laggard.collectors")

SECTION_TIME = "section-time."
"""Begins the names of the metrics; the section's name follows."""
GROUP = "LAGGARD_GROUP"
"""Environment variable with the label of a process: only ranks with the same label are compared."""
# What torchrun, Open MPI and MPICH call a rank's number on its node. Slurm's is that of our agents.
LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
# The time of a shorter section is mostly that of the scheduler and of the clock.
MIN_JUDGED_S = 1e-4


def section_of(metric: str) -> str | None:
    """Return the section whose times a metric has; None if it is another metric."""
    return metric.removeprefix(SECTION_TIME) if metric.startswith(SECTION_TIME) else None


def worker_tags(environ: Mapping[str, str], ordinal: int | None, pid: int) -> dict[str, str]:
    """Return the tags by which a process is told from its peers: its rank and its device, else its process id."""
    local_rank = _number(environ, LOCAL_RANK_VARIABLES)
    names = visible_names(environ)
    gpu = "" if ordinal is None else str(ordinal)
    if ordinal is not None and ordinal < len(names):
        gpu = names[ordinal]
    elif names and (local_rank is not None or len(names) == 1):
        gpu = names[(local_rank or 0) % len(names)]  # as for inline probes
    rank = _number(environ, RANK_VARIABLES)
    tags = {"rank": "" if rank is None else str(rank), "gpu": gpu}
    return {name: value for name, value in tags.items() if value} or {"process": str(pid)}


def _number(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)


class SectionReadings:
    """Turns what sections have buffered into one sample each, interval by interval."""

    def __init__(self) -> None:
        self._number = 0
        self._sent_at: dict[str, int] = {}
        self._gaps: dict[str, deque[int]] = {}

    def take(
        self, sections: Iterable[Section], tags: Mapping[str, str], now_s: float
    ) -> tuple[list[Sample], list[Sample]]:
        """Return the samples of an interval to be judged, and those of sections that wait or are short."""
        # A section that is used less than once per interval says how many intervals apart its samples are.
        self._number += 1
        judged: list[Sample] = []
        others: list[Sample] = []
        for section in sections:
            seconds = [value for value in _taken(section.seconds) if math.isfinite(value)]
            if not seconds:
                continue
            typical_s = statistics.median(seconds)
            group = {"group": section.group} if section.group is not None else {}
            metric = SECTION_TIME + section.name
            if section.waits or typical_s < MIN_JUDGED_S:
                others.append(Sample(metric, now_s, (typical_s,), {**tags, **group}))
            else:
                judged.append(Sample(metric, now_s, (typical_s,), {**tags, **group, **self._stride(metric)}))
        return judged, others

    def _stride(self, metric: str) -> dict[str, str]:
        gaps = self._gaps.setdefault(metric, deque(maxlen=2))
        if metric in self._sent_at:
            gaps.append(self._number - self._sent_at[metric])
        self._sent_at[metric] = self._number
        stride = min(gaps, default=1)  # the smaller one: a pause is not the section's rhythm
        return {STRIDE: str(stride)} if stride > 1 else {}


def _taken(buffer: deque[float]) -> list[float]:
    """Take all values out of a buffer to which other threads append meanwhile."""
    return [buffer.popleft() for _ in range(len(buffer))]


def send_sections(
    sections: Mapping[object, Section], look_for_device: Callable[[], None], ordinal: Callable[[], int | None]
) -> None:
    """Send the times of sections from now on, in a thread of its own."""
    threading.Thread(target=_send, args=(sections, look_for_device, ordinal), name="sections", daemon=True).start()


def _send(
    sections: Mapping[object, Section], look_for_device: Callable[[], None], ordinal: Callable[[], int | None]
) -> None:
    try:
        session = current_session()
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        writer = SampleWriter()
    except KVStoreError as error:
        _log.warning("sections are not sent: %s", error)
        return
    readings = SectionReadings()
    while True:
        look_for_device()
        time.sleep(launch.detect_interval_s)
        tags = {"host": session.environment.node, **worker_tags(os.environ, ordinal(), os.getpid())}
        if GROUP in os.environ:
            tags["group"] = os.environ[GROUP]
        judged, others = readings.take(list(sections.values()), tags, time.time())
        writer.tell(others)
        if judged and not writer.write(judged):
            return  # this launch is over
