"""What a training reports at each step by itself: the step, the time that it took, and its loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from laggard.resilience.job import Job
from laggard.telemetry import Telemetry
from laggard.telemetry.catalogue import STEP


class StepReporter:
    """Reports the steps of one rank: as progress of the job, and as metrics ``step``, ``step-time`` and ``loss``."""

    def __init__(self, rank: int) -> None:
        self.job = Job.current()
        self._telemetry = Telemetry()
        self._rank = str(rank)  # the rank, as a tag of the metrics
        self._began_s: float | None = None

    def begin(self) -> None:
        """Take this moment as the beginning of a step: what came before is not part of its time."""
        self._began_s = time.monotonic()

    def end(self, n_steps: int, loss: Any = None) -> None:
        """Report the end of a step."""
        self.job.progress(n_steps)
        self._add(STEP, n_steps)
        if self._began_s is not None:
            self._add("step-time", time.monotonic() - self._began_s)
        if loss is not None:
            self.add_loss(loss)
        self.begin()

    @contextmanager
    def saving(self, n_steps: int) -> Iterator[None]:
        """Declare that a checkpoint is being saved, and report it once it is; no step's time includes it."""
        with self.job.phase("checkpoint"):
            yield
        self.job.checkpointed(n_steps)
        self.begin()

    def add_loss(self, loss: Any) -> None:
        """Report a loss."""
        self._add("loss", loss)

    def _add(self, metric: str, value: Any) -> None:
        self._telemetry.add_data(metric, value, tagk="rank", tagv=self._rank)
