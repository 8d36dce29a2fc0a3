"""What the sections of the benchmark of detection are given: real timings, and how many jobs to play."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timings import Seconds

__all__ = ["Setting"]


@dataclass(frozen=True)
class Setting:
    """Pools of real series, and the number of trials of each kind."""

    probe: list[Seconds]  # at least 24 runs
    probe_short: list[Seconds]  # at least 4 runs
    steps: list[Seconds]
    trials: int
    largest: int  # devices in a job

    @property
    def healthy(self) -> int:
        """Number of healthy jobs of each kind."""
        return max(1, self.trials * 2 // 5)

    @property
    def long_jobs(self) -> int:
        """Number of jobs with a thousand rounds."""
        return max(1, self.trials // 100)

    def part(self, divisor: int, at_least: int = 1) -> int:
        """Return a fraction of the trials for slow sections, but not fewer than ``at_least`` unless there are fewer."""
        return min(self.trials, max(at_least, self.trials // divisor))

    def sizes(self, *sizes: int) -> list[int]:
        """Return the sizes that do not exceed the largest job."""
        return [size for size in sizes if size <= self.largest]
