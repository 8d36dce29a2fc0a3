"""Retrying operations while the server does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import MEMORY_ADVICE, StateFullError, StateUnavailableError

T = TypeVar("T")

RETRY_FOR_S = 30.0  # a state server that has died is up again by then: docs/restart.md
_FIRST_PAUSE_S = 0.02  # a server starts in less than 0.1 s: docs/benchmarks/state.md
_LONGEST_PAUSE_S = 0.5  # a small part of the time in which it is tried
# A try that seems to have taken longer was interrupted: this process was stopped and continued, and the server may well
# answer it now.
_LONGEST_TRY_S = 10.0
# Errors of a server that has done nothing: it runs somebody's long script, lacks replicas, or cannot write to its disk.
_NOT_NOW = ("BUSY ", "NOREPLICAS ", "MISCONF ")
# Error messages of a server without memory, for a plain command and for one inside a script.
_MEMORY_FULL = ("OOM command not allowed", "command not allowed when used memory")


def is_passing(error: Exception) -> bool:
    """Return whether an error is one of a server that is restarted, loading or busy, and may answer later."""
    if isinstance(error, redis.AuthenticationError):
        return False
    is_silent = isinstance(error, redis.ConnectionError | redis.TimeoutError)
    return is_silent or (isinstance(error, redis.ResponseError) and str(error).startswith(_NOT_NOW))


class RetryPolicy:
    """Retries operations, with growing pauses, while the server is restarted or busy."""

    def __init__(
        self,
        endpoint: Endpoint,
        retry_for_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = endpoint  # named in errors
        self._clock = clock
        self._sleep = sleep
        # How long to retry one operation, in seconds. Time in which the server is loading its log does not count: who
        # started it sees to it that it gets on.
        self.retry_for_s = retry_for_s

    def call(self, operation: Callable[[], T]) -> T:
        """Run an operation that is safe to repeat, and return its result."""
        left_s, looked_s = self.retry_for_s, self._clock()
        pause_s = _FIRST_PAUSE_S
        while True:
            error: redis.RedisError
            try:
                return operation()
            except redis.AuthenticationError as refused:
                raise self._unavailable(refused) from refused
            except redis.BusyLoadingError as loading:
                error, left_s, looked_s = loading, self.retry_for_s, self._clock()
            except (redis.ConnectionError, redis.TimeoutError) as unanswered:
                error = unanswered
            except redis.ResponseError as refused:
                if any(reason in str(refused) for reason in _MEMORY_FULL):
                    raise StateFullError(self._endpoint.address, "its memory is used up", MEMORY_ADVICE) from refused
                if not is_passing(refused):
                    raise
                error = refused
            now_s = self._clock()
            left_s -= min(now_s - looked_s, _LONGEST_TRY_S)
            looked_s = now_s
            if left_s < pause_s:
                raise self._unavailable(error) from error
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _unavailable(self, error: redis.RedisError) -> StateUnavailableError:
        return StateUnavailableError(self._endpoint.host, self._endpoint.port, str(error))
