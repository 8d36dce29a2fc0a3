"""Refusals: what a watcher doesn't believe of what it reads, counted by node and reason, and told once. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from laggard.detectors.notices import SamplesRefused
from laggard.kvstore.series.streams import Refused, Why


class Refusals:
    """Counts what is refused, for an interval from the first on: then it is told, and never again."""

    def __init__(self, hosts: Collection[str], interval_s: float) -> None:
        self._hosts = hosts  # the launch's nodes; what others are called is not kept
        self._interval_s = interval_s
        self._counted: dict[tuple[str, Why], tuple[float, SamplesRefused] | None] = {}  # `None`: it was told

    def add(self, refused: Refused, now_s: float) -> None:
        """Count a sample."""
        node = refused.node if refused.node in self._hosts else ""
        new = now_s, SamplesRefused(node, refused.why, refused.example, 0)
        if known := self._counted.setdefault((node, refused.why), new):
            since_s, about = known
            self._counted[node, refused.why] = since_s, replace(about, count=about.count + 1)

    def take_notices(self, now_s: float) -> list[SamplesRefused]:
        """Return what has been counted for long enough."""
        due = {key: known[1] for key, known in self._counted.items() if known and now_s >= known[0] + self._interval_s}
        self._counted.update(dict.fromkeys(due))
        return list(due.values())
