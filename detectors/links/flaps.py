"""Whose link goes down again and again, by what the kernel counts of its carrier. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.detectors.notices import Flapping

_FEWEST = 2  # once may be somebody's work at the switch
_QUIET_S = 600.0  # without going down, after which it is over


@dataclass(slots=True)
class _Downs:
    since_s: float  # when it was up for the last time before
    last_s: float = 0.0
    count: int = 0
    is_told: bool = False


class LinkFlaps:
    """Follows the nodes' links; each is told once, and once more when it is over."""

    def __init__(self, begun_s: float) -> None:
        self._begun_s = begun_s
        self._reported_s: dict[str, float] = {}
        self._downs: dict[str, _Downs] = {}

    def add(self, host: str, downs: int, now_s: float) -> list[Flapping]:
        """Note how often a node's link went down since its last report; return what is new."""
        before_s = self._reported_s.get(host, self._begun_s)
        self._reported_s[host] = now_s
        seen = self._downs.get(host, _Downs(before_s))
        if downs:
            self._downs[host] = seen
            seen.count, seen.last_s = seen.count + downs, now_s
            is_new = seen.count >= _FEWEST and not seen.is_told
            seen.is_told |= is_new
            return [Flapping(host, seen.count, now_s - seen.since_s)] if is_new else []
        if host not in self._downs or now_s - seen.last_s < _QUIET_S:
            return []
        del self._downs[host]
        return [Flapping(host, seen.count, seen.last_s - seen.since_s, now_s - seen.last_s)] if seen.is_told else []
