"""What a job's time was spent on, and the time that relaunches saved: pure.

While one device takes ``r`` times as long as its peers, a program that waits for its slowest device loses ``1 - 1/r``
of its time. The probes measure ``r``; only the program's author knows whether it waits. So these are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.resilience.record.effective_time import EffectiveTime, effective_time
from laggard.resilience.record.timeline import Launch, Timeline
from laggard.resilience.report.panel import Panel, forward_filled, ratio_to_peers


@dataclass(frozen=True, slots=True)
class Costs:
    """What a job's time was spent on, in seconds."""

    times: EffectiveTime  # where all of it went
    # For each launch: how long its program ran, at most how much of that it waited for a slow device, and how long the
    # relaunch that led to it took
    ran_s: tuple[float, ...]
    slow_s: tuple[float, ...]
    gap_s: tuple[float, ...]
    # How long the work done since the first relaunch for a slow device would have taken without a relaunch; NaN if
    # unknown
    without_relaunch_s: float = math.nan
    with_relaunch_s: float = math.nan  # how long that work took, relaunches included; NaN if unknown

    @property
    def saved_s(self) -> float:
        """Net time that the relaunches saved, negative if they cost more; NaN if unknown."""
        return self.without_relaunch_s - self.with_relaunch_s


def costs_of(timeline: Timeline, probes: Panel | None) -> Costs:
    """Estimate a job's costs from its timeline and its probe times."""
    ran_s = tuple(_end_s(launch, timeline) - launch.began_s for launch in timeline.launches)
    timed = probes if probes is not None and probes.in_seconds else None
    slow_s = tuple(0.0 if timed is None else _slow_s(timeline, launch, timed) for launch in timeline.launches)
    times = effective_time(timeline, slow_s=None if timed is None else slow_s)
    gap_s = tuple(sum(launch.gap_s.values()) for launch in timeline.launches)
    for index, launch in enumerate(timeline.launches):
        verdict = timeline.verdict_that_ended(launch)
        if verdict is not None and not math.isnan(verdict.of.slowdown):
            work_device_s = sum(
                (ran - slow) * _n_devices(later, timeline.devices)
                for later, ran, slow in list(zip(timeline.launches, ran_s, slow_s, strict=True))[index + 1 :]
            )
            without_relaunch_s = work_device_s * verdict.of.slowdown / _n_devices(launch, timeline.devices)
            with_relaunch_s = _end_s(timeline.launches[-1], timeline) - launch.ended_s
            return Costs(times, ran_s, slow_s, gap_s, without_relaunch_s, with_relaunch_s)
    return Costs(times, ran_s, slow_s, gap_s)


def _end_s(launch: Launch, timeline: Timeline) -> float:
    return timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s


def _n_devices(launch: Launch, devices: Mapping[str, tuple[str, ...]]) -> int:
    return sum(len(devices.get(host, ())) for host in launch.nodes) or len(launch.nodes)


def _slow_s(timeline: Timeline, launch: Launch, probes: Panel) -> float:
    accused = [(verdict.of.host, verdict.of.gpu or "") for verdict in timeline.verdicts]
    rows = [row for row in probes.rows(accused) if probes.devices[row][0] in launch.nodes]
    times_s = probes.times_s
    during = (times_s >= launch.began_s) & (times_s <= _end_s(launch, timeline))
    if not rows or not during.any():
        return 0.0
    slowest = np.nan_to_num(forward_filled(ratio_to_peers(probes, accused)[rows][:, during]), nan=1.0).max(axis=0)
    return float(np.sum((1 - 1 / np.maximum(slowest, 1.0)) * np.diff(probes.edges_s)[during]))
