"""What slow devices and relaunches cost a job, and what the relaunches saved: pure.

A program that waits for its slowest device loses ``1 - 1/r`` of its time while that device takes ``r`` times as long
as its peers. The probes tell ``r``; whether the program waits, only its author knows. So these are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from resilience.record.story import Launch, Story
from resilience.report.panel import Panel, held, ratio_to_peers

__all__ = ["Costs", "costs_of"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a job.

    Attributes
    ----------
    ran_s, slow_s, relaunch_s
        For each launch: how long its program ran, how much of that it waited for a slow device at most, and how long
        the relaunch that led to it took.
    else_s
        How long what was done after the first relaunch for a slow device would have taken without any; NaN where that
        is not known.
    took_s
        How long it took instead, relaunches included.
    """

    ran_s: tuple[float, ...]
    slow_s: tuple[float, ...]
    relaunch_s: tuple[float, ...]
    else_s: float = math.nan
    took_s: float = math.nan

    @property
    def saved_s(self) -> float:
        """What the relaunches saved, less what they cost; NaN where that is not known."""
        return self.else_s - self.took_s


def costs_of(story: Story, probes: Panel | None) -> Costs:
    """Reckon a job's costs from what happened and from its probes' readings."""
    ran_s = tuple(_until(launch, story) - launch.began_s for launch in story.launches)
    timed = probes if probes is not None and probes.in_seconds else None
    slow_s = tuple(0.0 if timed is None else _slow_s(story, launch, timed) for launch in story.launches)
    relaunch_s = tuple(sum(launch.gap_s.values()) for launch in story.launches)
    found = Costs(ran_s, slow_s, relaunch_s)
    for number, launch in enumerate(story.launches):
        finding = story.finding_against(launch)
        if finding is not None and not math.isnan(finding.slowdown):
            size = _size(launch, story.devices)
            done = sum(
                (ran - slow) * _size(later, story.devices)
                for later, ran, slow in list(zip(story.launches, ran_s, slow_s, strict=True))[number + 1 :]
            )
            took_s = _until(story.launches[-1], story) - launch.ended_s
            return Costs(ran_s, slow_s, relaunch_s, done * finding.slowdown / size, took_s)
    return found


def _until(launch: Launch, story: Story) -> float:
    return story.ended_s if math.isnan(launch.ended_s) else launch.ended_s


def _size(launch: Launch, devices: Mapping[str, tuple[str, ...]]) -> int:
    return sum(len(devices.get(host, ())) for host in launch.nodes) or len(launch.nodes)


def _slow_s(story: Story, launch: Launch, probes: Panel) -> float:
    accused = [(finding.host, finding.gpu or "") for finding in story.findings]
    rows = [row for row in probes.rows(accused) if probes.devices[row][0] in launch.nodes]
    times_s = probes.times_s
    during = (times_s >= launch.began_s) & (times_s <= _until(launch, story))
    if not rows or not during.any():
        return 0.0
    slowest = np.nan_to_num(held(ratio_to_peers(probes, accused)[rows][:, during]), nan=1.0).max(axis=0)
    return float(np.sum((1 - 1 / np.maximum(slowest, 1.0)) * np.diff(probes.edges_s)[during]))
