"""Flows: one round of transfers between nodes as arrays, and who has how fast ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.links.reading import LinkReading
from laggard.detectors.statistics.readings import Floats

_DISTURBED = 1.15  # times as long as the least of a round
_MOST_FOREIGN = 0.05  # of a reading's bytes, that others may have carried on the NIC meanwhile


@dataclass(frozen=True, slots=True)
class Flows:
    """One round's transfers; each array is ``(n_flows,)``."""

    sender: NDArray[np.intp]  # numbers of the nodes
    receiver: NDArray[np.intp]
    log_time: Floats  # log of the seconds per byte
    # Bytes that others carried on the NIC meanwhile, over those of the transfer; the larger of both ends
    foreign: Floats

    def __len__(self) -> int:
        return len(self.sender)

    def take(self, which: NDArray[np.bool_]) -> Flows:
        """Return some of the flows."""
        return Flows(self.sender[which], self.receiver[which], self.log_time[which], self.foreign[which])

    def calm(self) -> NDArray[np.bool_]:
        """Return which flows had the NICs to themselves, both ways: acknowledgements wait behind what goes back."""
        disturbed = self.foreign > _MOST_FOREIGN
        ways = set(zip(self.sender[disturbed].tolist(), self.receiver[disturbed].tolist(), strict=True))
        back = zip(self.receiver.tolist(), self.sender.tolist(), strict=True)
        return np.asarray(~(disturbed | np.fromiter((each in ways for each in back), np.bool_, len(self))))

    def undisturbed(self) -> Flows:
        """Return the flows that were calm."""
        return self.take(self.calm())

    def of_two_nodes(self) -> Flows:
        """Return one flow for each direction, with the middle one of its times; if most were disturbed, with the least.

        The middle one is the least noisy; of an even number it is the lesser.
        """
        if not len(self):
            return self
        table, _, sizes = ranked(self.sender, 2, self.log_time)
        ways = np.flatnonzero(sizes)
        least, middle = table[ways, 0], table[ways, (sizes[ways] - 1) // 2]
        log_time = np.where(middle - least > np.log(_DISTURBED), least, middle)
        return Flows(ways, 1 - ways, log_time, np.zeros(len(ways), np.float32))

    def without_classes(self, is_near: NDArray[np.bool_]) -> Flows:
        """Return the flows relative to the median of those below one leaf, or of those between leaves."""
        relative = self.log_time.copy()
        for which in (is_near, ~is_near):
            if which.any():
                relative[which] -= np.median(self.log_time[which])
        return replace(self, log_time=relative)


def flows_of(readings: Sequence[LinkReading], number_of: Mapping[str, int]) -> Flows:
    """Return readings as arrays; those of other nodes, and times that are not positive and finite, are left out."""
    known = [
        (number_of[each.sender], number_of[each.receiver], each.duration_s / each.n_bytes, each.foreign_share)
        for each in readings
        if each.sender in number_of and each.receiver in number_of and each.n_bytes > 0
    ]
    senders, receivers, per_byte_s, foreign = np.array(known, np.float64).reshape(len(known), 4).T
    good = (per_byte_s > 0) & (per_byte_s < np.inf)
    log_time = np.log(np.where(good, per_byte_s, 1)).astype(np.float32)
    flows = Flows(senders.astype(np.intp), receivers.astype(np.intp), log_time, foreign.astype(np.float32))
    return flows.take(good)


def ranked(owner: NDArray[np.intp], count: int, values: Floats) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return each owner's values in ascending order."""
    order = np.lexsort((values, owner))
    sizes = np.bincount(owner, minlength=count)
    begins = np.cumsum(sizes) - sizes
    rank = np.empty(len(owner), np.intp)
    rank[order] = np.arange(len(owner)) - begins[owner[order]]
    table = np.full((count, int(sizes.max(initial=0))), np.nan, np.float32)
    table[owner, rank] = values
    return table, rank, sizes


def other_fastest(owner: NDArray[np.intp], count: int, values: Floats) -> Floats:
    """Return for each value the least of its owner's other ones, ``NaN`` if it has no other."""
    table, rank, _ = ranked(owner, count, values)
    if table.shape[1] < 2:
        return np.full(len(values), np.nan, np.float32)
    return np.asarray(np.where(rank == 0, table[owner, 1], table[owner, 0]), np.float32)
