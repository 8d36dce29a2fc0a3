"""What a restart would cost at this moment, from what was seen of this launch and those before it. Reads no clock.

It is the time from a launch's start to its first progress, with the gap before it if it was a relaunch, plus the work
since the last commit. Progress is a commit to State, or a step beyond those that all launches before have reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laggard.detectors.economics.restart_cost import LEAST_COST_S, UNKNOWN_COST_S
from laggard.detectors.evidence import Price
from laggard.kvstore.control import LaunchRecord, Signs


class LaunchCost:
    """What a launch shows of its cost."""

    def __init__(self, launch: LaunchRecord, kept: Mapping[str, Any] | None = None) -> None:
        self._launch = launch  # the launch
        self._start_s: float | None = None if kept is None else kept["start_s"]
        self._commits = launch.commits
        self.has_progress = False  # whether it has shown any
        self._committed_s: float | None = None
        if kept is not None and kept["commits"]:  # what this launch does until its first commit could be lost
            self._committed_s = launch.began_s

    def note(self, signs: Signs, own_commits: int, now_s: float) -> None:
        """Note what the program has shown of itself by now; the detector's own commits are not the program's."""
        commits = signs.commits - own_commits
        has_step = signs.step is not None and (self._launch.step is None or signs.step > self._launch.step)
        if (commits > self._launch.commits or has_step) and not self.has_progress:
            self.has_progress = True
            if self._launch.began_s is not None:
                self._start_s = (self._launch.relaunch_s or 0.0) + max(0.0, now_s - self._launch.began_s)
        if commits != self._commits:
            self._commits, self._committed_s = commits, now_s

    def price(self, now_s: float) -> Price:
        """Return what a restart would cost now."""
        if self._start_s is None:
            return Price(max(UNKNOWN_COST_S, self._launch.relaunch_s or 0.0), "assumed")
        since_s = None if self._committed_s is None else max(0.0, now_s - self._committed_s)
        measured_s = self._start_s + (since_s or 0.0)
        return Price(max(LEAST_COST_S, measured_s), "measured", self._start_s, since_s, measured_s < LEAST_COST_S)

    def to_state(self) -> dict[str, Any]:
        """Return what the next launch should know, as plain values."""
        return {"start_s": self._start_s, "commits": self._committed_s is not None}
