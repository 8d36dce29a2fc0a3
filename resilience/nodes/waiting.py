"""Waiting for something about many nodes, each of which notifies at every change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from laggard.resilience.agent.awake import Deadline

# Nobody notifies when a node falls silent.
TICK_S = 0.25
# After a look at all nodes that was much work, so many times as long passes until the next one: to look after each of
# ten thousand answers would be quadratic, and keep the answers themselves waiting. On a busy machine it may only last.
_RESTS = 9
_LONG_S = 0.001


def wait_for(changed: threading.Condition, done: Callable[[], bool], deadline_s: float) -> bool:
    """Wait until something holds; return False at the deadline."""
    deadline = Deadline(deadline_s)
    while True:
        with changed:
            looked_s = time.thread_time()
            if done():
                return True
            took_s = time.thread_time() - looked_s
            if (left_s := deadline.left_s()) <= 0:
                return False
            changed.wait(min(left_s, TICK_S))
        if took_s > _LONG_S:
            time.sleep(min(_RESTS * took_s, TICK_S))
