"""LinkVerdict: who slows the transfers between nodes, as the analysis of links finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laggard.detectors.verdict import how_slow, peers, plural

__all__ = ["Kind", "LinkVerdict", "Side"]

Kind = Literal["node", "leaf", "pair", "link"]
Side = Literal["sends", "receives", "both", ""]

_WORDS: dict[Side, tuple[str, str]] = {
    "sends": ("sends", "to"),
    "receives": ("receives", "from"),
    "both": ("sends and receives", "to and from"),
}


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """A finding against a node's NIC, a leaf switch, the path of a pair, or the only link of two nodes.

    Attributes
    ----------
    kind
        ``link`` is the only link of two nodes: one of them is at fault, but nothing tells which.
    names
        The node or leaf; of a pair or link, the sender and the receiver.
    side
        Which direction of a node or leaf is slow; of a pair or link ``both``, or empty for that from the first name to
        the second.
    slowdown
        Time of a transfer over what it should be: 1.3 is 30 % slower.
    peers
        How many others it was compared with.
    rounds
        Rounds since the first slow one.
    restart
        Whether the job should go on without the node; only ever true for a node.
    """

    kind: Kind
    names: tuple[str, ...]
    side: Side
    slowdown: float
    peers: int
    rounds: int
    restart: bool

    def reason(self) -> str:
        """Return one line: who, how slow, compared with what, and for how many rounds."""
        slow, lasts = how_slow(self.slowdown), plural(self.rounds)
        if self.kind in ("node", "leaf"):
            verb, to_whom = _WORDS[self.side]
            who = self.names[0] if self.kind == "node" else f"leaf {self.names[0]}"
            return f"{who} {verb} {slow} its {peers(self.peers)} ({to_whom} all its partners), {lasts}"
        path = " to ".join(self.names) + (" and back" if self.side == "both" else "")
        if self.kind == "pair":
            return f"{path}: {slow} the other transfers of both, {lasts}"
        return f"{path}: {slow} before or the other way, {lasts}; either end may be at fault"
