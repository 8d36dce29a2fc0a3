"""Which nodes are below one leaf switch, by the round trips between them, where that is clear. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise

from laggard.collectors.links.reading import LinkReading
from laggard.detectors.links.flows import MOST_FOREIGN

__all__ = ["LeafSearch", "leaves_by_latency"]

Pair = tuple[str, str]

MIN_NODES = 6  # with fewer, chance alone divides them into neat halves
MANY_NODES = 12  # so many hardly look divided by chance, and the slowest of many pairs is slower
MIN_READINGS = 16  # of a pair: its median is then four times as steady as one round's
MIN_GAP = 1.03  # between the slowest pair below a leaf and the fastest between leaves
EVERY, KEPT = 8, 64  # rounds from one look at the round trips to the next; how many of a path are looked at
MIN_FAR_PAIRS = 3  # between two leaves; of those that never met nothing is known


class LeafSearch:
    """Collects round trips until they show the leaves."""

    def __init__(self) -> None:
        self._round_trips_s: dict[Pair, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._rounds = 0
        self.leaves: dict[str, str] = {}

    def add_round(self, readings: Iterable[LinkReading]) -> bool:
        """Take a round's readings; return whether they have just made the leaves known."""
        if self.leaves:
            return False
        for each in readings:
            if each.foreign_share <= MOST_FOREIGN:  # what others send makes round trips wait
                self._round_trips_s[each.sender, each.receiver].append(each.latency_s)
        self._rounds += 1
        if self._rounds % EVERY == 0:
            self.leaves = leaves_by_latency(self._round_trips_s)
        return bool(self.leaves)


def leaves_by_latency(round_trips_s: Mapping[Pair, Sequence[float]]) -> dict[str, str]:
    """Return the leaf of each node, such as ``of node1`` after its first node; of none unless all of this holds.

    A round trip below one leaf passes fewer switches.  So the pairs' medians must fall into two classes that are
    further apart than either is wide (from twelve nodes on: half as wide), and by 3 % at least.  Everybody must have a
    near partner; who is near somebody near must not be far; and any two leaves must be told apart by three pairs.

    Parameters
    ----------
    round_trips_s
        By sender and receiver; both directions of a pair are taken together.
    """
    found = defaultdict[frozenset[str], list[float]](list)
    for pair, readings in round_trips_s.items():
        found[frozenset(pair)] += [seconds for seconds in readings if 0 < seconds < math.inf]
    usual = {pair: math.log(statistics.median(each)) for pair, each in found.items() if len(each) >= MIN_READINGS}
    nodes = sorted({node for pair in usual for node in pair})
    limit = _limit(sorted(usual.values()), len(nodes))
    if limit is None:
        return {}
    leaves = _joined(nodes, (pair for pair, latency in usual.items() if latency < limit))
    far = Counter(frozenset(leaves[node] for node in pair) for pair, latency in usual.items() if latency > limit)
    names = set(leaves.values())
    apart = all(far[frozenset(each)] >= MIN_FAR_PAIRS for each in combinations(names, 2))
    together = min(Counter(leaves.values()).values()) > 1 and all(len(each) > 1 for each in far)
    if len(names) > 1 and apart and together:
        return {node: f"of {first}" for node, first in leaves.items()}
    return {}


def _limit(latencies: Sequence[float], n_nodes: int) -> float | None:
    """Return what lies between two clear classes of latencies in ascending order; ``None`` if there are none."""
    if n_nodes < MIN_NODES:
        return None
    gap, low, high = max((high - low, low, high) for low, high in pairwise(latencies))
    widest = max(low - latencies[0], latencies[-1] - high)
    enough = widest if n_nodes < MANY_NODES else widest / 2
    return (low + high) / 2 if gap > max(enough, math.log(MIN_GAP)) else None


def _joined(nodes: Iterable[str], near: Iterable[frozenset[str]]) -> dict[str, str]:
    """Return the first node of those that each node is joined to by near pairs."""
    first = {node: node for node in nodes}

    def first_of(node: str) -> str:
        while first[node] != node:
            node = first[node]
        return node

    for pair in near:
        one, other = sorted(map(first_of, pair))
        first[other] = one
    return {node: first_of(node) for node in first}
