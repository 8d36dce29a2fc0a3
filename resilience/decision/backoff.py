"""How long to wait before something is tried again: twice as long each time. Pure."""

from __future__ import annotations

MAX_DOUBLINGS = 32  # beyond any limit, and no overflow


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """Return how long to wait after a number of failures in a row: ``first_s``, then twice as long each time."""
    return float(min(most_s, first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS))) if failures > 0 else 0.0


class Backoff:
    """The waits of one helper process that is started again whenever it ends."""

    def __init__(self, first_s: float = 1.0, most_s: float = 60.0, good_run_s: float = 60.0) -> None:
        self._first_s, self._most_s, self._good_run_s = first_s, most_s, good_run_s
        self._failures = 0

    def next_s(self, ran_s: float) -> float:
        """Return how long to wait after a run of this length."""
        self._failures = 1 if ran_s >= self._good_run_s else self._failures + 1
        return backoff_s(self._failures, self._first_s, self._most_s)
