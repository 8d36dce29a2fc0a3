"""Where a node is in its round, so that its partner does not begin before it is ready."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

TRANSFERS, DONE = range(2)
"""The parts of an exchange of two nodes."""


class Step(NamedTuple):
    """A moment of the schedule: a round, an exchange of two nodes in it, and a part of that."""

    round: int
    exchange: int
    part: int


def has_passed(now: Step, asked: Step) -> bool:
    """Return whether a node that is at ``now`` has left the exchange that somebody else is in."""
    return now[:2] > asked[:2] and asked.part != DONE


class Gate:
    """The step that this node has reached; those who serve its partners wait for it."""

    def __init__(self) -> None:
        self._now = Step(-1, 0, 0)
        self._called = -1
        self._closed = False
        self._changed = threading.Condition()

    def reach(self, step: Step) -> None:
        """Go on to a step."""
        with self._changed:
            self._now = step
            self._changed.notify_all()

    def wait(self, step: Step, until_s: float) -> bool:
        """Wait for a step until ``until_s`` on the monotonic clock; return whether the node is there, and not past it.

        Whoever is done stays done in later exchanges.
        """
        with self._changed:
            if step.round > self._called:
                self._called = step.round
                self._changed.notify_all()
            is_there = self._changed.wait_for(lambda: self._now >= step, max(0.0, until_s - time.monotonic()))
            return is_there and not has_passed(self._now, step)

    def wait_for_call(self, after: int, timeout_s: float) -> int | None:
        """Wait until a partner is in a later round than this one; return that round, or None if the time is over."""
        # A node that was held up so joins the others at once, and does not stay a round behind them.
        with self._changed:
            self._changed.wait_for(lambda: self._called > after or self._closed, timeout_s)
            return self._called if self._called > after else None

    def close(self) -> None:
        """Wait for nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
