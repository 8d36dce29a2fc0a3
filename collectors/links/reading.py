"""What one probe of a link says: of one between two nodes, or between two GPUs of a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One timed transfer between two nodes, by the clock of the end that asked for it."""

    round: int  # number of the round
    sender: str  # the node that sent the bytes, and the one that received them
    receiver: str
    duration_s: float  # the least of the repeats: from the request to the last byte or its acknowledgement, in seconds
    n_bytes: int  # how many bytes were sent
    # Bytes that others carried on the NIC meanwhile, over `n_bytes`; the larger of both ends
    foreign_share: float


@dataclass(frozen=True, slots=True)
class PeerReading:
    """One timed transfer between two GPUs of a node, by the clock of the one that sent."""

    sender: str  # by their names on the node
    receiver: str
    duration_s: float  # the least of the repeats
    n_bytes: int
    path: str = ""  # what joins them, as path_between says
