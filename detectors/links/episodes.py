"""How slow the nodes are that were found to be slow to others, from round to round. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.collectors.links.reading import LinkReading
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import share_lost

ROUNDS = 3
"""After as many rounds in which it is as fast as others, a node is well."""


@dataclass(slots=True)
class _Slow:
    side: str
    since_s: float
    slowdowns: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS))


class LinkEpisodes:
    """The episodes of nodes, each from the verdict until its links are as fast as those of others."""

    def __init__(self, min_slowdown: float) -> None:
        self._min_slowdown = min_slowdown  # the smallest slowdown that matters
        self._slow: dict[str, _Slow] = {}

    def begin(self, host: str, side: str, slowdown: float, since_s: float) -> None:
        """Begin an episode, or go on with one of which more is known."""
        known = self._slow.setdefault(host, _Slow(side, since_s))
        known.side = side
        known.slowdowns.append(slowdown)

    def add_round(self, readings: Sequence[LinkReading]) -> None:
        """Note how slow the nodes were in a round, by readings that nothing disturbed."""
        for host, slow in [*self._slow.items()]:
            others = [each.duration_s for each in readings if host not in {each.sender, each.receiver}]
            own = [each.duration_s for each in readings if _is_of(each, host, slow.side)]
            if not own or not others:
                continue
            slow.slowdowns.append(min(own) / statistics.median(others))  # a partner may be slow too
            if max(slow.slowdowns) < self._min_slowdown:
                del self._slow[host]

    def of(self, host: str) -> Episode | None:
        """Return the episode that a node is in; ``None`` if it is well."""
        if host not in self._slow:
            return None
        slow = self._slow[host]
        slowdown = statistics.median(slow.slowdowns)
        return Episode(slow.since_s, slowdown, share_lost(max(1.0, slowdown)))


def _is_of(reading: LinkReading, host: str, side: str) -> bool:
    return (side != "receives" and reading.sender == host) or (side != "sends" and reading.receiver == host)
