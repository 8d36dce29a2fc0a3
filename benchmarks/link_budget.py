"""Healthy jobs of three and four nodes: how many accuse a node, and restart if that costs 30 s.

All jobs are judged at once, and only the nodes' directions: what the links' own analysis would hold back counts here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.job_kinds import LogSeconds
from benchmarks.link_model import NODE_SHARE, PATH_SHARE, Traffic, noise_of_repeats
from benchmarks.side_by_side import BUDGETS, play

__all__ = ["HEAD", "rows"]

COST_S, ROUNDS = 30.0, 100
NODES = (3, 4)  # of which all pairs meet in each round
HEAD = [
    "noise",
    "N",
    "healthy jobs",
    f"evidence at {BUDGETS[0]:g}",
    f"node accused at {BUDGETS[-1]:g}",
    f"restarts at a cost of {COST_S:g} s",
]


def rows(noises: Mapping[str, Traffic], jobs: int, round_s: float, min_slowdown: float) -> Iterator[list[object]]:
    """Yield a row for each noise and number of nodes."""
    for what, traffic in noises.items():
        for count in NODES:
            kind = _directions(count, traffic, jobs)
            found = play(kind, ROUNDS, COST_S, round_s=round_s, min_slowdown=min_slowdown)
            counts = [int(np.count_nonzero(each)) for each in (found.evidence[0], found.accused, found.restarts)]
            yield [what, count, f"{jobs:,}", *counts]


def _directions(count: int, traffic: Traffic, jobs: int) -> Iterator[LogSeconds]:
    """Yield the log times of what each node sends to the others and receives, ``(jobs, 2 * count, count - 1)``."""
    random, shape = np.random.default_rng(count), (jobs, count, count)
    usual = PATH_SHARE * random.uniform(-np.sqrt(3), np.sqrt(3), shape)
    usual += NODE_SHARE * (random.standard_normal((jobs, count, 1)) + random.standard_normal((jobs, 1, count)))
    noise, others = traffic.deviation * random.standard_normal(shape), ~np.eye(count, dtype=np.bool_)
    while True:
        flows = usual + (noise if traffic.deviation else noise_of_repeats(random, *shape))
        sides = [each[:, others].reshape(jobs, count, count - 1) for each in (flows, flows.swapaxes(1, 2))]
        yield np.concatenate(sides, axis=1) - np.median(flows[:, others], axis=1)[:, None, None]
        fresh = traffic.deviation * np.sqrt(1 - traffic.lasts**2) * random.standard_normal(shape)
        noise = traffic.lasts * noise + fresh
