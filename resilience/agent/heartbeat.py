"""The agent's sign of life, from a thread of its own, and whether the controller still replies to it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from laggard.resilience.wire.node import SetUp

LOOK_INTERVAL_S = 1.0
# No command takes longer. An agent that does is stuck, and its heartbeats must not hide that.
STUCK_S = 15.0


class Heartbeat:
    """Beats while the agent looks after its node: ``lease_s`` without a word of the controller's is its end."""

    def __init__(self, lease_s: float, others_s: float, n_nodes: int) -> None:
        self._lease_s = lease_s
        self._timing = HeartbeatTiming(n_nodes)
        self._looked_s = time.monotonic()
        self._heard_s = self._looked_s + others_s
        self._ended = threading.Event()

    def start(self, beat: Callable[[], None]) -> None:
        """Begin to beat."""
        threading.Thread(target=self._run, args=(beat,), name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Beat no more."""
        self._ended.set()

    def set_up(self, command: SetUp) -> None:
        """Take the timing of the job."""
        self._timing = HeartbeatTiming(command.n_nodes)

    def hear(self) -> None:
        """Note that something has come from the controller."""
        self._heard_s = time.monotonic()

    def look(self) -> None:
        """Note that the agent is at work."""
        self._looked_s = time.monotonic()

    @property
    def due_s(self) -> float:
        """In how many seconds the next look is due; not positive: now."""
        return self._looked_s + LOOK_INTERVAL_S - time.monotonic()

    @property
    def lease_is_over(self) -> bool:
        """Whether the controller has been silent for too long."""
        return time.monotonic() > self._heard_s + self._lease_s

    def _run(self, beat: Callable[[], None]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the controller is gone, as the other thread notices too
            while not self._ended.wait(self._timing.interval_s):
                if time.monotonic() < self._looked_s + STUCK_S:
                    beat()
