"""Intrusion: what probes take from the program, and how seldom they must run to take no more than a share. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["OVERHEAD", "Intrusion"]

# What the program loses, over what the probes take: its caches are cold, and the way there and back takes time. Of
# virtual devices: docs/benchmarks/intrusion.md.
OVERHEAD = 1.25


class Intrusion:
    """What the probes of one device cost it.

    A probe costs the device what it takes there when nothing else runs: its fastest reading, as often as it is
    repeated. Slower readings tell of waiting, for the program's own kernels, which takes nothing from the program.

    Parameters
    ----------
    max_share
        Of the device's time, that probes may take.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._cost_s: dict[str, float] = {}

    def note(self, probe: str, seconds: Sequence[float], prepare_s: float = 0.0) -> None:
        """Take one turn's repeats of a probe, and what came before them."""
        cost_s = prepare_s + len(seconds) * min(seconds, default=0.0)
        if math.isfinite(cost_s):
            self._cost_s[probe] = min(cost_s, self._cost_s.get(probe, math.inf))

    def cost_s(self, main: str) -> float:
        """Return the seconds that the dearest turn costs: one of the main probe and one other."""
        others = [cost_s for probe, cost_s in self._cost_s.items() if probe != main]
        return self._cost_s.get(main, 0.0) + max(others, default=0.0)

    def turns_apart(self, main: str, interval_s: float) -> int:
        """Return how many turns must lie between two of this device's, 1 if it can take each."""
        return max(1, math.ceil(OVERHEAD * self.cost_s(main) / (self._max_share * interval_s)))
