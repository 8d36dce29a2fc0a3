"""When a device's next probe is due, and how many rounds to skip to keep the probes' overhead low. Pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

# What the program loses, over what the probes take: its caches are cold afterwards, and switching takes time. Measured
# on virtual devices: docs/benchmarks/intrusion.md.
OVERHEAD = 1.25
JITTER = 0.2  # of the interval


class Intrusion:
    """What the probe of one device costs it.

    A round costs the time that it takes when nothing else runs, its fastest reading, times its repeats. A slower
    reading includes waiting for the program's own kernels, which costs the program nothing.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share  # the largest share of the device's time that the probe may take
        self.cost_s = math.inf  # of a round

    def note(self, seconds: Sequence[float], check_s: float) -> None:
        """Record one round's repeats, and the time that checking them took."""
        cost_s = check_s + len(seconds) * min(seconds, default=0.0)
        if math.isfinite(cost_s):
            self.cost_s = min(cost_s, self.cost_s)

    def stride(self, interval_s: float) -> int:
        """Return how many intervals apart this device's rounds must be: 1 if it can afford each of them."""
        if math.isinf(self.cost_s):
            return 1
        return max(1, math.ceil(OVERHEAD * self.cost_s / (self._max_share * interval_s)))


class ProbeSchedule:
    """Counts the rounds of one device, on a clock that all devices of the job share.

    Round n is due n intervals after the clock's zero, early or late by a random part of the interval that follows from
    the round's number, so all devices run it at one moment without talking to each other. A device that was delayed
    skips the rounds it missed. The first round is due at once: a program has just started then.
    """

    def __init__(self, interval_s: float, now_s: float, seed: str = "") -> None:
        self.number = math.floor(now_s / interval_s)
        self._interval_s = interval_s  # seconds from one round to the next
        self._seed = seed  # what the random parts are drawn from besides the number: the same on all devices
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next round, 0 if it is due."""
        return max(0.0, self._at_s - now_s)

    def advance(self, now_s: float, stride: int = 1) -> None:
        """Schedule the next round whose moment is still to come, among those whose number is divisible by ``stride``.

        Devices that skip rounds so skip the same ones.
        """
        earliest = max(self.number + 1, math.floor(now_s / self._interval_s - JITTER))
        self.number = -(-earliest // stride) * stride
        while (at_s := moment_s(self.number, self._interval_s, self._seed)) < now_s:
            self.number += stride
        self._at_s = at_s


def moment_s(number: int, interval_s: float, seed: str) -> float:
    """Return when a round is due: the same for all who ask, and in step with nothing periodic."""
    return (number + random.Random(f"{seed} {number}").uniform(-JITTER, JITTER)) * interval_s
