"""How slow is slow: the effects that the tests look for, and the limits that a reading may exceed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.estimates import Floats

GPU_MIN_SLOWDOWN = 1.05  # what chips of one model usually differ by: docs/detection.md
# On a virtual device the probe queues behind the program's own kernels, so its readings depend on their size.
VIRTUAL_MIN_SLOWDOWN = 1.5

VERY_SLOW = 1.33  # from this slowdown on, a verdict's severity is `very slow`
_REPORT_SHARE = 0.3  # of the smallest slowdown that matters (in logs): reported, but not worth a restart
_SILICON_SUSPECT = 1.05  # a chip this much slower than its peers is still within normal variation
SILICON_SLOW = 1.07  # four standard deviations of the V100s of the benchmark
SELF_NOISES = 5.0  # standard deviations of a device's own noise
_PEER_NOISES = 3.0  # standard deviations of the group's noise
_PEER_SPREADS = 3.5  # standard deviations between chips
_FEW_PEERS = 0.2  # with few peers the reference is uncertain: this over (N - 1) squared is added, in log seconds
_MANY_PEERS, _FEW_CHIPS = 16, 0.12  # with fewer peers the spread is mostly chance: it raises the limit to 13 % at most
_PAIR_RATIO = 2.0  # of two devices, only a slowdown by this factor shows which one is slow


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The user's thresholds, as ratios of times."""

    # The smallest slowdown that matters: no smaller one yields a restart verdict
    min_slowdown: float = GPU_MIN_SLOWDOWN
    peer_slowdown: float = SILICON_SLOW  # healthy devices of one kind differ by less from their peers

    def __post_init__(self) -> None:
        if not 1 < self.min_slowdown < np.inf:
            raise ValueError(f"min_slowdown must be a ratio above 1 (1.05 is 5 % slower), got {self.min_slowdown}")
        if not 1 < self.peer_slowdown < np.inf:
            raise ValueError(f"peer_slowdown must be a ratio above 1 (1.07 is 7 % slower), got {self.peer_slowdown}")

    @property
    def self_levels(self) -> tuple[float, float]:
        """Effects in log seconds for which the test against a device's own past reports, and asks for a restart."""
        restart = float(np.log(self.min_slowdown))
        return _REPORT_SHARE * restart, restart

    @property
    def peer_levels(self) -> tuple[float, float]:
        """Effects in log seconds for which the test against many peers reports, and asks for a restart."""
        report, restart = self.self_levels
        return max(report, float(np.log(min(_SILICON_SUSPECT, self.peer_slowdown)))), max(
            restart, float(np.log(self.peer_slowdown))
        )

    def against_self(self, allowed: Floats) -> list[Floats]:
        """Return the limit of the residual, by level: the effect, or what noise allows if that is more."""
        return [np.maximum(np.float32(level), allowed) for level in self.self_levels]

    def against_peers(
        self,
        noise: Floats,
        spread: Floats,
        peers: NDArray[np.intp],
        noises: float = _PEER_NOISES,
        per_device: Callable[[Floats], Floats] = lambda by_group: by_group,
    ) -> list[Floats]:
        """Return the limit of the offset from the peers' median, by level."""
        few = np.asarray(_FEW_PEERS / np.maximum(peers - 1, 1) ** 2, np.float32)
        chips = np.where(peers == 2, np.float32(0), np.float32(_PEER_SPREADS) * spread)
        chips = np.where(peers < _MANY_PEERS, np.minimum(chips, np.float32(_FEW_CHIPS)), chips)
        found = []
        for level in self.peer_levels:
            pair = np.float32(max(2 * level, np.log(_PAIR_RATIO)))
            effect = np.where(peers == 2, pair, np.float32(level) + few)
            found.append(np.maximum(per_device(effect) + np.float32(noises) * noise, per_device(chips)))
        return found
