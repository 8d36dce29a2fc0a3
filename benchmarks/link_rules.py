"""Rules of other tools for slow links, fed with the same simulated jobs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.link_model import LinkJob
from laggard.detectors.links.flows import ranked
from laggard.detectors.statistics.readings import Floats

__all__ = ["dlrover", "two_way_fit"]

_FIT_ROUNDS, _PASSES, _SMALLEST, _MADS = 4, 4, 0.05, 5.0


def dlrover(job: LinkJob, rounds: int) -> Iterator[set[int]]:
    """Yield whom DLRover's network check would accuse, if it ran in every round of the job.

    Neighbours first, then the fastest with the slowest; a node is as slow as the pair it is in, and accused if its
    lesser time is more than twice the median.
    """
    count = len(job.nodes)
    for _ in range(rounds):
        first = _times_of_pairs(job, np.arange(count))
        second = _times_of_pairs(job, _ends_meet(np.argsort(first, kind="stable")))
        job.next_round()
        least = np.minimum(first, second)
        yield set(np.flatnonzero(least > 2 * np.median(least)).tolist())


def _times_of_pairs(job: LinkJob, order: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return each node's time; an odd one out joins the first pair, as a group of three."""
    ends = order[: len(order) // 2 * 2].reshape(-1, 2).T
    if len(order) % 2:
        ends = np.concatenate([ends, [[order[-1]], [order[0]]]], axis=1)
    flows = job.flows_between(ends)
    times = np.zeros(len(order))
    for nodes in (flows.sender, flows.receiver):
        np.maximum.at(times, nodes, np.exp(flows.log_time))
    return times


def _ends_meet(order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return an order in which the first is beside the last, the second beside the last but one, and so on."""
    half = (len(order) + 1) // 2
    meet = np.empty_like(order)
    meet[::2], meet[1::2] = order[:half], order[half:][::-1]
    return meet


def two_way_fit(job: LinkJob, rounds: int) -> Iterator[set[int]]:
    """Yield whom a two-way median fit accuses: every four rounds, nodes off by over 5 % and 5 MAD twice running."""
    count = len(job.nodes)
    window: list[tuple[NDArray[np.intp], NDArray[np.intp], Floats]] = []
    before: set[int] = set()
    for flows in job.rounds(rounds):
        is_near = job.leaf[flows.sender] == job.leaf[flows.receiver]
        window.append((flows.sender, flows.receiver, flows.without_classes(is_near).log_time))
        accused: set[int] = set()
        if len(window) == _FIT_ROUNDS:
            sender, receiver, log_time = (np.concatenate(part) for part in zip(*window, strict=True))
            off = _slow_in_fit(sender, receiver, log_time, count)
            accused, before, window = off & before, off, []
        yield accused


def _slow_in_fit(sender: NDArray[np.intp], receiver: NDArray[np.intp], log_time: Floats, count: int) -> set[int]:
    left = log_time.copy()
    offsets = np.zeros((2, count), np.float32)
    for _ in range(_PASSES):
        for side, owner in enumerate((sender, receiver)):
            table, _, sizes = ranked(owner, count, left)
            middle = np.zeros(count, np.float32)
            middle[sizes > 0] = np.nanmedian(table[sizes > 0], axis=1)
            offsets[side] += middle
            left -= middle[owner]
    slow: set[int] = set()
    for of_side in offsets:
        away = of_side - np.median(of_side)
        limit = max(_SMALLEST, _MADS * float(np.median(np.abs(away))))
        slow |= set(np.flatnonzero(away > limit).tolist())
    return slow
