"""When does a program hang? Pure: the time and the signs of life are passed in.

A sign of life is a commit to State or a new step reported with ``Job.progress``. With ``--hang-timeout SECONDS`` the
program may be silent for that long. With ``--hang-timeout auto`` the timeout is derived from the launch itself: from
its fifth sign of life on, it is ``max(60 s, 10 x longest silence between two signs)``.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["HangTimeout", "HangWatch"]

HangTimeout = float | Literal["auto"]
"""Seconds, or ``auto``: derived from the launch itself."""

MIN_SIGNS = 5
MIN_AUTO_S = 60.0
AUTO_FACTOR = 10.0


class HangWatch:
    """Watches one launch for a hang.

    Parameters
    ----------
    timeout
        How long the program may be silent.
    signs
        Its signs of life so far; all that matters is whether they change.
    now_s
        When the launch began, in monotonic seconds.
    """

    def __init__(self, timeout: HangTimeout, signs: object, now_s: float) -> None:
        self._timeout = timeout
        self._signs = signs
        self._last_s = now_s
        self._count = 0
        self._longest_s = 0.0

    def check(self, signs: object, now_s: float) -> float | None:
        """Return for how many seconds the program has been silent, if it hangs; otherwise None."""
        silent_s = now_s - self._last_s
        if signs != self._signs:
            if self._count > 0:  # until its first sign it was starting
                self._longest_s = max(self._longest_s, silent_s)
            self._signs, self._last_s, self._count = signs, now_s, self._count + 1
            return None
        timeout_s = self.timeout_s()
        if timeout_s is None or silent_s <= timeout_s:
            return None
        self._last_s = now_s  # report it once, and again after another timeout if the program is left running
        return silent_s

    def timeout_s(self) -> float | None:
        """Return how long the program may be silent; None while that is not known yet."""
        if self._timeout != "auto":
            return self._timeout
        return max(MIN_AUTO_S, AUTO_FACTOR * self._longest_s) if self._count >= MIN_SIGNS else None
