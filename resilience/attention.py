"""A clock for deadlines on others: it stands still while this process is not scheduled itself.

Who sleeps cannot say that somebody was silent. On a machine so busy that we get no turn, or after we were stopped and
continued, what others said meanwhile lies unread in its pipe, and the monotonic clock alone would accuse them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Attention"]

TICK_S = 0.2
# A tick may come this late before what is beyond counts as sleep.
LONGEST_TICK_S = 0.5


class Attention:
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
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to count, in a thread of its own."""
        threading.Thread(target=self._count, name="attention", daemon=True).start()

    def stop(self) -> None:
        """Count no more."""
        self._ended.set()

    def now_s(self) -> float:
        """Return the seconds counted so far."""
        return self._awake_s

    def tick(self) -> None:
        """Count the time since the last tick, as far as it was no sleep."""
        now_s = self._clock()
        self._awake_s += min(now_s - self._last_s, LONGEST_TICK_S)
        self._last_s = now_s

    def _count(self) -> None:
        while not self._ended.wait(TICK_S):
            self.tick()
