"""When a program hangs: pure, so the time and the signs of life come from outside.

A sign of life is a commit to State or a new step told with ``Job.progress``. With ``--hang-timeout SECONDS`` the
program may be silent that long. With ``--hang-timeout auto`` the deadline follows from the launch's own past: from its
fifth sign on, the program may be silent for ``max(60 s, 10 x its longest silence between two signs)``.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["HangTimeout", "HangWatch"]

HangTimeout = float | Literal["auto"]
"""Seconds, or derived from the program's own past."""

MIN_SIGNS = 5
LEAST_AUTO_S = 60.0
LONGEST_TIMES = 10.0


class HangWatch:
    """Watches one launch.

    Parameters
    ----------
    timeout
        How long the program may be silent.
    signs
        The signs of life so far; only whether they change counts.
    now_s
        When the launch began, on a clock that does not jump.
    """

    def __init__(self, timeout: HangTimeout, signs: object, now_s: float) -> None:
        self._timeout = timeout
        self._signs = signs
        self._last_s = now_s
        self._count = 0
        self._longest_s = 0.0

    def look(self, signs: object, now_s: float) -> float | None:
        """Return how long a program that hangs has been silent, in seconds; None where it does not hang."""
        silent_s = now_s - self._last_s
        if signs != self._signs:
            if self._count > 0:  # before its first sign it was starting
                self._longest_s = max(self._longest_s, silent_s)
            self._signs, self._last_s, self._count = signs, now_s, self._count + 1
            return None
        deadline_s = self.deadline_s()
        if deadline_s is None or silent_s <= deadline_s:
            return None
        self._last_s = now_s  # told once; again after another deadline, if it was left to go on
        return silent_s

    def deadline_s(self) -> float | None:
        """How long the program may be silent; None: not known yet."""
        if self._timeout != "auto":
            return self._timeout
        return max(LEAST_AUTO_S, LONGEST_TIMES * self._longest_s) if self._count >= MIN_SIGNS else None
