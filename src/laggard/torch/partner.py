"""What only one rank has, kept by a rank on another node as well: a node may be lost, with all that is on it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


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

    def __init__(self, rank: int, size: int) -> None:
        self._to, self._source = partners(rank, size)
        self._has_other_nodes = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < size
        self.kept: dict[int, dict[int, bytes]] = {self._source: {}}

    def exchange(self, step: int, own: bytes) -> None:
        """Give away what is this rank's own at the beginning of a step, empty if it is not known; all ranks do."""
        if not self._has_other_nodes:
            return
        sent = [dist.isend(torch.tensor([len(own)]), self._to)]
        if own:
            sent.append(dist.isend(torch.frombuffer(bytearray(own), dtype=torch.uint8), self._to))
        size = torch.zeros(1, dtype=torch.int64)
        self._receive(size)
        of_source = self.kept[self._source]
        of_source.pop(step - 2, None)
        if int(size):
            received = torch.empty(int(size), dtype=torch.uint8)
            self._receive(received)
            of_source[step] = received.numpy().tobytes()
        for each in sent:
            each.wait(dist.default_pg_timeout)

    def _receive(self, into: torch.Tensor) -> None:
        work = dist.irecv(into, self._source)
        # By default it waits as long as the group's connecting may take, and others may be stopped for longer.
        work.wait(dist.default_pg_timeout)

    def clear(self) -> None:
        """Forget what was kept, since all go on from another step."""
        self.kept[self._source].clear()
