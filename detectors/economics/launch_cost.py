"""What a restart would cost at this moment, from what was seen of this launch and those before it. Reads no clock.

It is the time from a launch's start to its first progress, with the gap before it if it was a relaunch, plus the work
since the newest checkpoint. Progress is a commit to State, or a step beyond those that all launches before have
reported. The program says which step it can be restored to; if it never does, commits are taken for checkpoints.
Without either, at most ten minutes of work are assumed to be lost, until a relaunch has shown how long it takes to go
beyond the steps of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laggard.detectors.economics.restart_cost import LEAST_COST_S, UNKNOWN_START_S, UNKNOWN_WORK_S
from laggard.detectors.evidence import Price, Saved
from laggard.kvstore.control import LaunchRecord, Signs
from laggard.records import record_of


@dataclass(frozen=True, slots=True)
class _Kept:
    start_s: float | None = None
    saved: Saved = "unknown"


class LaunchCost:
    """What a launch shows of its cost."""

    def __init__(self, launch: LaunchRecord, kept: Mapping[str, Any] | None = None) -> None:
        self._launch = launch  # the launch
        known = _Kept() if kept is None else record_of(_Kept, kept)
        self._start_s, self._saved = known.start_s, known.saved
        self.has_progress = False  # whether it has shown any
        # What this launch does until its first checkpoint could be lost
        self._saved_s = launch.began_s if self._saved in {"commit", "checkpoint"} else None
        self._commits = launch.commits
        self._checkpointed: float | None = None
        self._from: tuple[float, float] | None = None  # a step, and when the program was there

    def note(self, signs: Signs, now_s: float) -> None:
        """Note what the program has shown of itself by now."""
        before = self._launch.step
        if signs.step is not None and self._from is None:
            self._from = signs.step, now_s
        if signs.checkpointed not in {None, self._checkpointed}:
            self._note_checkpoint(signs, now_s)
        elif signs.commits != self._commits and self._saved != "checkpoint":
            self._saved, self._saved_s = "commit", now_s
        has_step = signs.step is not None and (before is None or self._saved == "checkpoint" or signs.step > before)
        if (signs.commits > self._launch.commits or has_step) and not self.has_progress:
            self.has_progress = True
            if self._launch.began_s is not None:
                self._start_s = (self._launch.relaunch_s or 0.0) + max(0.0, now_s - self._launch.began_s)
                if self._saved == "unknown" and before is not None:
                    self._saved = "done again"  # the work that was lost was part of that time
        self._commits = signs.commits

    def price(self, now_s: float, given_s: float | None = None) -> Price:
        """Return what a restart would cost now; what was given counts until all of it is measured."""
        is_known = self._start_s is not None and self._saved in {"checkpoint", "done again"}
        if given_s is not None and not (given_s and is_known):
            return Price(given_s)
        unsaved_s = self._unsaved_s(now_s)
        if self._start_s is None:
            return Price(max(UNKNOWN_START_S, self._launch.relaunch_s or 0.0) + unsaved_s, "assumed")
        measured_s = self._start_s + unsaved_s
        is_least = measured_s < LEAST_COST_S
        return Price(max(LEAST_COST_S, measured_s), "measured", self._start_s, unsaved_s, self._saved, is_least)

    def to_state(self) -> dict[str, Any]:
        """Return what the next launch should know, as plain values."""
        return {"start_s": self._start_s, "saved": self._saved}

    def _note_checkpoint(self, signs: Signs, now_s: float) -> None:
        """Note a checkpoint as of the moment at which the program was at its step, by its pace since the last one."""
        step, reached_s = signs.checkpointed or 0.0, now_s
        if signs.step is not None and self._from is not None and signs.step > max(step, self._from[0]):
            begin, begin_s = self._from
            reached_s -= (now_s - begin_s) * min(1.0, (signs.step - step) / (signs.step - begin))
        self._saved, self._checkpointed, self._saved_s, self._from = "checkpoint", step, reached_s, (step, reached_s)

    def _unsaved_s(self, now_s: float) -> float:
        """Return for how long the program has done what a restart would lose."""
        if self._saved == "done again":
            return 0.0
        if self._saved_s is not None:
            return max(0.0, now_s - self._saved_s)
        age_s = UNKNOWN_WORK_S if self._launch.began_s is None else max(0.0, now_s - self._launch.began_s)
        return min(UNKNOWN_WORK_S, age_s)
