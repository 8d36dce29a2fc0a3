"""Which nodes and pairs no longer reach each other, by the transfers that failed, and which links flap. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
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


ROUNDS = 2  # in a row: a node that has just ended its launch fails one
MIN_PEERS = 2  # which do not reach a node: with one, that one may be to blame

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Losses:
    """What is new with a round."""

    # Nodes that none of their peers has reached for two rounds, though some had before: why, by node
    nodes: Mapping[str, str]
    # Pairs that have not reached each other for two rounds, though both reach others: why, by pair
    pairs: Mapping[Pair, str]


class LinkLosses:
    """Counts failed transfers from round to round; each loss is told once, until the node or pair is there again."""

    def __init__(self) -> None:
        self._reached: set[str] = set()  # who has ever been
        self._failed: dict[str | Pair, int] = defaultdict(int)  # rounds in a row
        self._unreached_by: dict[str, set[str]] = defaultdict(set)

    def add_round(self, done: Iterable[Pair], failed: Mapping[Pair, str]) -> Losses:
        """Return the losses that are new."""
        well = {_ordered(pair) for pair in done}
        lost = {_ordered(pair): why for pair, why in failed.items()}
        reaching = {host for pair in well for host in pair}
        missing = {host: why for pair, why in lost.items() for host in pair if host not in reaching}
        for known in [*self._failed]:
            if known in well or known in reaching:
                del self._failed[known]
        for host in reaching:
            self._unreached_by.pop(host, None)
        for one, other in lost:
            for host, peer in ((one, other), (other, one)):
                if host in missing:
                    self._unreached_by[host].add(peer)
        nodes = {
            host: why
            for host, why in missing.items()
            if self._counts(host) and host in self._reached and len(self._unreached_by[host]) >= MIN_PEERS and reaching
        }
        pairs = {
            pair: why
            for pair, why in lost.items()
            if not missing.keys() & set(pair) and pair not in well and self._counts(pair)
        }
        self._reached |= reaching
        return Losses(nodes, pairs)

    def _counts(self, what: str | Pair) -> bool:
        """Count a round in which something failed; return whether that has just become enough."""
        self._failed[what] += 1
        return self._failed[what] == ROUNDS


def _ordered(pair: Pair) -> Pair:
    one, other = sorted(pair)
    return one, other
