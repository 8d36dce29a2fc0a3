"""What one probe of a link says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LinkReading"]


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One timed transfer between two nodes, by the clock of the node that asked for it.

    Attributes
    ----------
    round
        Number of the round.
    sender, receiver
        The node that sent the bytes, and the one that received them.
    duration_s
        The least of the repeats: from the request to the last byte or its acknowledgement, in seconds.
    n_bytes
        How many bytes were sent.
    latency_s
        Median of the round trips of 64 bytes, in seconds.
    foreign_share
        Bytes that others carried on the NIC meanwhile, over ``n_bytes``; the larger of both ends.
    """

    round: int
    sender: str
    receiver: str
    duration_s: float
    n_bytes: int
    latency_s: float
    foreign_share: float
