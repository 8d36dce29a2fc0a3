"""How long an agent may be silent, and the clock that measures it.

Each agent sends a heartbeat twice a second. The controller takes a node for lost when its agent has been silent for
`HEARTBEAT_TIMEOUT_S`, or for `FIRST_HEARTBEAT_TIMEOUT_S` if it has not sent anything yet, because it is still starting.

Silence is measured with `AwakeClock`, which stands still while this process is not scheduled itself. On a machine so
busy that we get no turn, or after we were stopped and continued, the messages of the agents lie unread in their pipes;
by a monotonic clock all agents would then seem silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["FIRST_HEARTBEAT_TIMEOUT_S", "HEARTBEAT_TIMEOUT_S", "AwakeClock"]

# Seven heartbeats. The controller looks every half second, so a frozen or cut off node is noticed within five seconds.
HEARTBEAT_TIMEOUT_S = 3.5
FIRST_HEARTBEAT_TIMEOUT_S = 60.0
TICK_S = 0.2
# Time beyond this between two ticks is time in which this process was not scheduled.
LONGEST_TICK_S = 0.5


class AwakeClock:
    """Counts the seconds in which this process was awake.

    Parameters
    ----------
    clock
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
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
