"""Precedence of one kind of work over another, of the threads of one process."""

from __future__ import annotations

import threading


class Precedence:
    """Between :meth:`begin` and :meth:`end`, those that call :meth:`give_way` wait, but only so long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0

    def begin(self) -> None:
        """Begin some work, in any thread."""
        with self._changed:
            self._under_way += 1

    def end(self) -> None:
        """End some work, in any thread."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def give_way(self, at_most_s: float) -> bool:
        """Wait until no work is under way; return whether that is so, or the time has passed."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, at_most_s)
