"""Repeating what may be repeated while the server does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from kvstore.endpoint import Endpoint
from kvstore.errors import StateFullError, StateUnavailableError

__all__ = ["Patience"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# As a server says it by itself, and from within a script.
_FULL = ("MISCONF", "OOM command not allowed", "command not allowed when used memory")


class Patience:
    """Waits out a server that is restarted, for as long as it was told to.

    Parameters
    ----------
    endpoint : Endpoint
        To name in errors.
    seconds : float
        How long one operation is repeated.
    """

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self._endpoint = endpoint
        self.seconds = seconds

    def call(self, operation: Callable[[], T]) -> T:
        """Run an operation that may be repeated.

        Raises
        ------
        StateUnavailableError
            If there was no answer in time.
        StateFullError
            If the server has no room left, on disk or in memory.
        """
        deadline = time.monotonic() + self.seconds
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return operation()
            except redis.AuthenticationError as error:
                raise self._unavailable(error) from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if time.monotonic() + pause_s > deadline:
                    raise self._unavailable(error) from error
            except redis.ResponseError as error:
                if any(reason in str(error) for reason in _FULL):
                    raise StateFullError(self._endpoint.address, str(error)) from error
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _unavailable(self, error: redis.RedisError) -> StateUnavailableError:
        return StateUnavailableError(self._endpoint.host, self._endpoint.port, str(error))
