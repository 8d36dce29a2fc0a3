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
            is_there = self._changed.wait_for(lambda: self._now >= step, max(0.0, until_s - time.monotonic()))
            return is_there and not has_passed(self._now, step)
