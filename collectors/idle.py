"""Idle devices: one that has nothing to do lowers its clock, and would be timed at that."""

from __future__ import annotations

import time
from collections.abc import Callable

from collectors.probes.base import Probe

__all__ = ["WarmUp"]

LONGEST_S = 0.2


class WarmUp:
    """Raises the clock of a device that idles.

    Parameters
    ----------
    idles
        Tells whether its clock is low as that of an idle device.
    """

    def __init__(self, idles: Callable[[], bool]) -> None:
        self._idles = idles
        self._helps = True

    def __call__(self, probe: Probe) -> bool:
        """Run a probe until the clock has risen, 0.2 s at most; return whether that was needed.

        Where it was no use once, the clock is held low by something else, and it is not tried again.
        """
        if not self._helps or not self._idles():
            return False
        until_s = time.monotonic() + LONGEST_S
        while time.monotonic() < until_s:
            probe.seconds()
            if not self._idles():
                return True
        self._helps = False
        return True
