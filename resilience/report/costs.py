"""What a job's time was spent on, and the time that relaunches saved: pure.

While one device takes ``r`` times as long as its peers, a program that waits for its slowest device loses ``1 - 1/r``
of its time. Verdicts tell ``r``; only the program's author knows whether it waits. So these are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from laggard.resilience.record.effective_time import EffectiveTime, effective_time
from laggard.resilience.record.timeline import Launch, Timeline


@dataclass(frozen=True, slots=True)
class Costs:
    """What a job's time was spent on, in seconds."""

    times: EffectiveTime  # where all of it went
    # For each launch: how long its program ran, and how long the relaunch that led to it took
    ran_s: tuple[float, ...]
    gap_s: tuple[float, ...]
    # How long the work done since the first relaunch for a slow device would have taken without a relaunch; NaN if
    # unknown
    without_relaunch_s: float = math.nan
    with_relaunch_s: float = math.nan  # how long that work took, relaunches included; NaN if unknown

    @property
    def saved_s(self) -> float:
        """Net time that the relaunches saved, negative if they cost more; NaN if unknown."""
        return self.without_relaunch_s - self.with_relaunch_s


def costs_of(timeline: Timeline, *, on_gpus: bool = True) -> Costs:
    """Estimate a job's costs from its timeline; what it saved only on GPUs, and if that is not longer than the job."""
    ran_s = tuple(_end_s(launch, timeline) - launch.began_s for launch in timeline.launches)
    times = effective_time(timeline)
    gap_s = tuple(sum(launch.gap_s.values()) for launch in timeline.launches)
    for index, launch in enumerate(timeline.launches):
        verdict = timeline.verdict_that_ended(launch)
        if on_gpus and verdict is not None and not math.isnan(verdict.of.slowdown):
            work_device_s = sum(
                (ran - parts.slow_s) * _n_devices(later, timeline.devices)
                for later, ran, parts in list(zip(timeline.launches, ran_s, times.launches, strict=True))[index + 1 :]
            )
            without_relaunch_s = work_device_s * verdict.of.slowdown / _n_devices(launch, timeline.devices)
            with_relaunch_s = _end_s(timeline.launches[-1], timeline) - launch.ended_s
            found = Costs(times, ran_s, gap_s, without_relaunch_s, with_relaunch_s)
            return found if found.saved_s <= times.total_s else Costs(times, ran_s, gap_s)
    return Costs(times, ran_s, gap_s)


def _end_s(launch: Launch, timeline: Timeline) -> float:
    return timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s


def _n_devices(launch: Launch, devices: Mapping[str, tuple[str, ...]]) -> int:
    return sum(len(devices.get(host, ())) for host in launch.nodes) or len(launch.nodes)
