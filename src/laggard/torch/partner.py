"""What only one rank has, kept by a rank on another node as well: a node may be lost, with all that is on it."""

from __future__ import annotations

import os

import torch.distributed as dist

from laggard.torch.kept_group import KeptGroup


def partners(rank: int, size: int) -> tuple[int, int]:
    """Return to which rank this one gives what is its own, and which one gives to it. Pure."""
    distance = size // 2  # a node with no more than half of the ranks, which are neighbours, has no two so far apart
    return (rank + distance) % size, (rank - distance) % size


class Partner:
    """Gives what is this rank's own to another one at the end of each step, and keeps what a third one gives.

    Attributes
    ----------
    kept
        What is another rank's own, of the last two steps, by rank and step.
    """

    def __init__(self, group: KeptGroup) -> None:
        rank, size = group.membership.rank, group.membership.size
        self._group = group
        self._to, self._source = partners(rank, size)
        self._has_other_nodes = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < size
        self.kept: dict[int, dict[int, bytes]] = {self._source: {}}

    def exchange(self, step: int, own: bytes) -> None:
        """Give away what is this rank's own at the beginning of a step, empty if it is not known; all ranks do."""
        if not self._has_other_nodes:
            return
        sent = self._group.begin_to_send(own, self._to)
        received = self._group.receive(self._source)
        of_source = self.kept[self._source]
        of_source.pop(step - 2, None)
        if received:
            of_source[step] = bytes(received)
        for each in sent:
            each.wait(dist.default_pg_timeout)
