"""Time in which this process was awake: it stands still while the process gets no turn, or is stopped.

On a machine so busy that we get no turn, or after we were stopped and continued, the messages of others lie unread. By
a monotonic clock everybody would then seem silent, and every deadline over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

TICK_S = 0.2
# Time beyond this between two ticks is time in which this process was not scheduled.
LONGEST_TICK_S = 0.5


class AwakeClock:
    """Counts the seconds in which this process was awake."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # monotonic seconds
        self._last_s = clock()
        self._awake_s = 0.0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start counting, in a separate thread."""
        threading.Thread(target=self._count, name="awake-clock", daemon=True).start()

    def stop(self) -> None:
        """Stop counting."""
        self._stopped.set()

    def now_s(self) -> float:
        """Return the seconds counted so far."""
        return self._awake_s

    def tick(self) -> None:
        """Count the time since the last tick, at most `LONGEST_TICK_S` of it."""
        now_s = self._clock()
        self._awake_s += min(now_s - self._last_s, LONGEST_TICK_S)
        self._last_s = now_s

    def _count(self) -> None:
        while not self._stopped.wait(TICK_S):
            self.tick()


class Deadline:
    """A deadline for whoever looks again and again, at least every `LONGEST_TICK_S`.

    If we were not scheduled, what we wait for may have happened meanwhile without our having heard of it: then there is
    time for another look.
    """

    def __init__(self, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # monotonic seconds
        self._looked_s = clock()
        self._left_s = wait_s

    def left_s(self) -> float:
        """Return how much time is left; none if it is zero or less."""
        now_s = self._clock()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if passed_s > LONGEST_TICK_S:
            self._left_s = max(self._left_s - LONGEST_TICK_S, LONGEST_TICK_S)
        else:
            self._left_s -= passed_s
        return self._left_s
