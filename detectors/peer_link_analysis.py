"""Which links between the GPUs of a node are slow, by the statistics that judge links between nodes. Reads no clock."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from laggard.collectors.links.reading import LinkReading
from laggard.detectors.links.flows import MOST_FOREIGN
from laggard.detectors.links.link_verdict import LinkVerdict
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis

__all__ = ["PeerLinkAnalysis"]

LEARNED_ROUNDS = 5
"""Readings of as many rounds say what is usual of each path, so that the next bus is not slow beside NVLink."""
BUSY_ROUNDS = 3


class PeerLinkAnalysis:
    """The links of one node's GPUs.

    :class:`SlowLinkAnalysis` judges them with the GPUs in the place of nodes. Readings are first divided by what is
    usual of their path: pairs are peers if the same joins them, a number of NVLinks or a part of the bus.

    Parameters
    ----------
    budget
        Bound on the probability of any false verdict over the whole run.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times.
    """

    def __init__(self, budget: float, min_slowdown: float) -> None:
        self._budget, self._min_slowdown = budget, min_slowdown
        self._learning: list[Sequence[LinkReading]] = []
        self._usual: Mapping[str, float] = {}
        self._analysis: SlowLinkAnalysis | None = None
        self._busy_rounds = 0

    def add_round(self, readings: Sequence[LinkReading]) -> list[LinkVerdict]:
        """Take one round's readings and return the verdicts that are new."""
        calm = [each for each in readings if each.foreign_share <= MOST_FOREIGN]
        self._busy_rounds = 0 if calm or not readings else self._busy_rounds + 1
        if self._analysis is not None:
            return self._analysis.add_round(self._relative(calm))
        self._learning += [calm] if calm else []
        if len(self._learning) < LEARNED_ROUNDS:
            return []
        learned, self._learning = self._learning, []
        self._usual = _usual(each for found in learned for each in found)
        gpus = sorted({gpu for found in learned for each in found for gpu in (each.sender, each.receiver)})
        self._analysis = analysis = SlowLinkAnalysis(gpus, None, self._budget, self._min_slowdown)
        return [verdict for found in learned for verdict in analysis.add_round(self._relative(found))]

    def is_newly_busy(self) -> bool:
        """Tell whether others filled all links in the last rounds, in one more round than is left to chance."""
        return self._busy_rounds == BUSY_ROUNDS

    def _relative(self, readings: Iterable[LinkReading]) -> list[LinkReading]:
        """Return readings as if all paths were alike; a path that was not there at first is left out."""
        return [
            replace(each, duration_s=each.duration_s / each.n_bytes / self._usual[each.path], n_bytes=1)
            for each in readings
            if each.path in self._usual
        ]


def _usual(readings: Iterable[LinkReading]) -> dict[str, float]:
    """Return the median of the seconds per byte, by path."""
    by_path: dict[str, list[float]] = defaultdict(list)
    for each in readings:
        if 0 < each.duration_s < math.inf:
            by_path[each.path].append(each.duration_s / each.n_bytes)
    return {path: statistics.median(found) for path, found in by_path.items()}
