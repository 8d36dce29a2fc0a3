"""How slow is slow: the effects that the tests look for, and the readings that count as exceeding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Floats

__all__ = ["Thresholds"]

_REPORT_SHARE = 0.3  # of the smallest slowdown that matters (in logs): reported, never restarted for
_SILICON_SUSPECT = 1.05  # a chip this much slower than its peers is still normal silicon
_SILICON_SLOW = 1.07  # four standard deviations of the V100s of the benchmark
_SELF_NOISES = 5.0  # standard deviations of a device's own noise
_PEER_NOISES = 3.0
_PEER_SPREADS = 3.5  # standard deviations between chips
_FEW_PEERS = 0.2  # a reference of few peers is uncertain: this over (N - 1) squared, in log seconds
_MANY_PEERS, _FEW_CHIPS = 16, 0.12  # of fewer peers the spread is mostly chance: it asks for no more than 13 %
_PAIR_RATIO = 2.0  # of two devices only a slowdown by this factor tells which one


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The user's thresholds, as ratios of times.

    Attributes
    ----------
    min_slowdown
        The smallest slowdown that matters: no smaller one yields a restart verdict.
    very_slow
        From here on a verdict's severity is ``very slow``.
    """

    min_slowdown: float = 1.05
    very_slow: float = 1.33

    def __post_init__(self) -> None:
        if not 1 < self.min_slowdown < np.inf:
            raise ValueError(f"min_slowdown must be a ratio above 1 (1.05 is 5 % slower), got {self.min_slowdown}")
        if not 1 < self.very_slow < np.inf:
            raise ValueError(f"very_slow must be a ratio above 1 (1.33 is 33 % slower), got {self.very_slow}")

    @property
    def self_levels(self) -> tuple[float, float]:
        """Effects, in log seconds, that the test against a device's own past reports, and restarts for."""
        restart = float(np.log(self.min_slowdown))
        return _REPORT_SHARE * restart, restart

    @property
    def peer_levels(self) -> tuple[float, float]:
        """Effects, in log seconds, that the test against peers reports, and restarts for, among many peers."""
        report, restart = self.self_levels
        return max(report, float(np.log(_SILICON_SUSPECT))), max(restart, float(np.log(_SILICON_SLOW)))

    def against_self(self, noise: Floats) -> list[Floats]:
        """Return the smallest residual that exceeds, by level."""
        return [np.maximum(np.float32(level), np.float32(_SELF_NOISES) * noise) for level in self.self_levels]

    def against_peers(
        self,
        noise: Floats,
        spread: Floats,
        peers: NDArray[np.intp],
        noises: float = _PEER_NOISES,
        spread_out: Callable[[Floats], Floats] = lambda by_group: by_group,
    ) -> list[Floats]:
        """Return the smallest offset from the peers' middle that exceeds, by level.

        Parameters
        ----------
        noise
            Standard deviation of log time from round to round, by device or by group.
        spread
            The same between the devices of a group, ``(n_probes, n_groups)``.
        peers
            Devices in the group, the one itself included, ``(n_probes, n_groups)``.
        noises
            How many ``noise`` a reading may be off.
        spread_out
            Gives each device its group's value, where ``noise`` is by device.
        """
        few = np.asarray(_FEW_PEERS / np.maximum(peers - 1, 1) ** 2, np.float32)
        chips = np.where(peers == 2, np.float32(0), np.float32(_PEER_SPREADS) * spread)
        chips = np.where(peers < _MANY_PEERS, np.minimum(chips, np.float32(_FEW_CHIPS)), chips)
        found = []
        for level in self.peer_levels:
            pair = np.float32(max(2 * level, np.log(_PAIR_RATIO)))
            effect = np.where(peers == 2, pair, np.float32(level) + few)
            found.append(np.maximum(spread_out(effect) + np.float32(noises) * noise, spread_out(chips)))
        return found
