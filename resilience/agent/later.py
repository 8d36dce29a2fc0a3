"""What a process that waits in a selector has to do at a later time."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable


class Later:
    """Calls that are due at some monotonic time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # monotonic seconds
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # calls cannot be compared

    def after(self, wait_s: float, call: Callable[[], None]) -> None:
        """Have something called in a number of seconds."""
        heapq.heappush(self._calls, (self._clock() + wait_s, next(self._numbers), call))

    def wait_s(self, most_s: float) -> float:
        """Return how long to wait until the next call is due, at most this long."""
        return min([most_s, *(max(0.0, due_s - self._clock()) for due_s, _, _ in self._calls[:1])])

    def run_due(self) -> None:
        """Call what is due."""
        while self._calls and self._calls[0][0] <= self._clock():
            heapq.heappop(self._calls)[2]()
