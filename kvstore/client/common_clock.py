"""The clock that all processes of a job share: the state server's."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import redis

from laggard.system.clock_offset import ClockOffset

# A clock that nothing corrects drifts by about 50 us a second, so this keeps it right to a few milliseconds.
MEASURE_EVERY_S = 60.0
PINGS = 4  # the quickest of a few counts


class CommonClock:
    """The state server's clock, for what all processes of a job do at one moment.

    It is this machine's monotonic clock plus an offset, measured by the round trip of a ping, so it does not jump when
    somebody sets the machine's clock. Until the server answers for the first time it is the machine's own clock.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client  # a connection to the state server
        self._clock = clock  # a monotonic clock
        self._offset = ClockOffset(time.time() - clock(), math.inf)
        self._measured_s = -math.inf
        self.measure_if_due()

    def now_s(self) -> float:
        """Return the Unix time."""
        return self._clock() + self._offset.offset_s

    @property
    def uncertainty_s(self) -> float:
        """By how many seconds it may be wrong; infinite until the server has answered."""
        return self._offset.uncertainty_s

    def measure_if_due(self) -> None:
        """Measure the offset if the last time was a minute ago; if the server does not answer, the old one holds."""
        if self._clock() - self._measured_s < MEASURE_EVERY_S:
            return
        self._measured_s = self._clock()
        with contextlib.suppress(redis.RedisError):
            self._offset = min((self._ping() for _ in range(PINGS)), key=lambda offset: offset.uncertainty_s)

    def _ping(self) -> ClockOffset:
        sent_s = self._clock()
        seconds, microseconds = self._client.time()
        return ClockOffset.of_ping(sent_s, seconds + microseconds * 1e-6, self._clock())
