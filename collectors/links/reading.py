"""What one probe of a link says: of one between two nodes, or between two GPUs of a node."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LinkReading"]


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One timed transfer between two nodes, or two GPUs of one node, by the clock of the end that asked for it.

    Attributes
    ----------
    round
        Number of the round.
    sender, receiver
        The node that sent the bytes, and the one that received them; or the GPUs, by their names on the node.
    duration_s
        The least of the repeats: from the request to the last byte or its acknowledgement, in seconds.
    n_bytes
        How many bytes were sent.
    latency_s
        Median of the round trips of 64 bytes, in seconds; 0 between GPUs.
    foreign_share
        Bytes that others carried on the NIC or the GPU's links meanwhile, over ``n_bytes``; the larger of both ends.
    path
        What joins two GPUs, as :func:`~laggard.collectors.links.nvlinks.path_between` says;
        empty between nodes.
    """

    round: int
    sender: str
    receiver: str
    duration_s: float
    n_bytes: int
    latency_s: float
    foreign_share: float
    path: str = ""
