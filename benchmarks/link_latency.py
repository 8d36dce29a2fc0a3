"""Leaf switches found by round trips, in simulated jobs: how often all are right, and how often any is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice

import numpy as np

from benchmarks.link_model import names_of
from laggard.collectors.links.schedule import rounds_of
from laggard.detectors.latency_leaves import leaves_by_latency

__all__ = ["FAR_TIMES", "SEARCHES", "leaf_search"]

# How many nodes, and how many of them below each leaf.
SEARCHES = ((4, 2), (6, 6), (6, 3), (8, 2), (8, 4), (12, 4), (16, 16), (16, 4), (16, 8), (64, 16))
FAR_TIMES = (1.1, 1.2, 1.3, 1.5)

ROUNDS = 48
ROUND_TRIP_S = 3e-5
NODE_SHARE, PATH_SHARE = 0.02, 0.01  # standard deviations in log seconds: of what nodes and paths differ by
NOISE, TAIL = 0.1, 3.0  # of a round's median: its standard deviation, and the degrees of freedom of its Student's t
SPIKE_RATE, SPIKE_MEAN = 0.15, 0.3


def leaf_search(count: int, below: int, far_times: float, seed: int) -> str:
    """Return ``right``, ``wrong`` or ``none``: which leaves are found of a job with so many nodes below each.

    Parameters
    ----------
    far_times
        Round trips between leaves over those below one.
    """
    random = np.random.default_rng(seed)
    nodes = names_of(count)
    leaf = {node: f"leaf{number // below}" for number, node in enumerate(nodes)}
    own = dict(zip(nodes, random.normal(0.0, NODE_SHARE, count).tolist(), strict=True))
    paths = defaultdict[tuple[str, str], float](lambda: float(random.normal(0.0, PATH_SHARE)))
    found = defaultdict[tuple[str, str], list[float]](list)
    for sub_rounds in islice(rounds_of(nodes, f"job {seed}"), ROUNDS):
        for one, other in (pair for pairs in sub_rounds for pair in pairs):
            usual = own[one] + own[other] + paths[one, other] + np.log(far_times) * (leaf[one] != leaf[other])
            for ends in ((one, other), (other, one)):
                noise = NOISE * np.sqrt((TAIL - 2) / TAIL) * random.standard_t(TAIL)
                spike = random.exponential(SPIKE_MEAN) * (random.random() < SPIKE_RATE)
                found[ends].append(float(ROUND_TRIP_S * np.exp(usual + noise + spike)))
    leaves = leaves_by_latency(found)
    if not leaves:
        return "none"
    return "right" if _groups(leaves) == _groups(leaf) else "wrong"


def _groups(leaves: Mapping[str, str]) -> Counter[frozenset[str]]:
    members = defaultdict[str, set[str]](set)
    for node, leaf in leaves.items():
        members[leaf].add(node)
    return Counter(map(frozenset, members.values()))
