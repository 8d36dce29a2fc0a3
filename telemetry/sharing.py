"""Calls that threads share, where each would otherwise wait for the others and then do the same again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Calls a function; threads that ask at the same time share a call that began after each of them asked."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._n_begun = 0
        self._last: tuple[int, T] | None = None  # the number of the last call that succeeded, and its result

    def __call__(self) -> T:
        """Return the result of a call that begins now or later."""
        n_before = self._n_begun
        with self._lock:
            if self._last is None or self._last[0] <= n_before:
                self._n_begun += 1
                self._last = self._n_begun, self._call()
            return self._last[1]
