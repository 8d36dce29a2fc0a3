"""The signals that ask a job to end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from types import FrameType

from laggard.resilience.agent.processes import end_descendants
from laggard.resilience.controller.launches import END_DEADLINE_S
from laggard.resilience.controller.stopping import StopRequested
from laggard.resilience.errors import ProcessesStillRunningError

# Slurm sends SIGTERM twice in a row when a job runs out of time. A user takes longer to press Ctrl-C a second time.
SIGNAL_DEBOUNCE_S = 1.0
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)


class StopSignals:
    """The first signal raises :class:`StopRequested` in the main thread, the second one ends the process at once."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, end: Callable[..., object] = end_descendants
    ) -> None:
        self._clock = clock
        self._end = end  # ends the processes that this one has started
        self._is_asked = False
        self._signalled_s: float | None = None

    def listen(self) -> None:
        """Handle the signals from now on."""
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *WARNINGS):
            signal.signal(each, self._handle)

    def anticipate(self) -> None:
        """Take the job as asked to end, or as ended: the next signal asks for nothing more."""
        self._is_asked = True

    def _handle(self, signum: int, _: FrameType | None) -> None:
        now_s = self._clock()
        if self._signalled_s is None:
            self._signalled_s = now_s
            if not self._is_asked:
                raise StopRequested(signum)
        elif now_s >= self._signalled_s + SIGNAL_DEBOUNCE_S:
            with contextlib.suppress(ProcessesStillRunningError):  # they are killed, but held in the kernel
                self._end(deadline_s=END_DEADLINE_S)
            raise SystemExit(128 + signum)
