"""Turns: when a device's next reading is due. Pure: the time is passed in."""

from __future__ import annotations

import random

__all__ = ["JITTER", "Turns", "jittered"]

JITTER = 0.2


class Turns:
    """Counts the turns of one device.

    Those of all devices of a launch begin together, and one that was held up leaves out what it has missed: so the same
    turn comes at about the same time everywhere.

    Parameters
    ----------
    interval_s
        Seconds from one turn to the next.
    now_s
        When the first one is due.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self.number = 0
        self._interval_s = interval_s
        self._due_s = now_s
        self._at_s = jittered(now_s, interval_s)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the turn, 0 if it is due."""
        return max(0.0, self._at_s - now_s)

    def taken(self, now_s: float, apart: int = 1) -> None:
        """Go on to the turn that comes ``apart`` turns later, or to the first one after those that were missed."""
        due_s = self._due_s + apart * self._interval_s
        missed = max(0, int((now_s - due_s) / self._interval_s))
        self.number += apart + missed
        self._due_s = due_s + missed * self._interval_s
        self._at_s = jittered(self._due_s, self._interval_s)


def jittered(due_s: float, interval_s: float) -> float:
    """Return a time near the one that is due: the devices' rounds stay together, their readings do not."""
    return due_s + random.uniform(-JITTER, JITTER) * interval_s
