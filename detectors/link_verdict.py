"""LinkVerdict: who slows the transfers between nodes, as the analysis of links finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laggard.detectors.verdict import how_slow, peers, plural

__all__ = ["Kind", "LinkVerdict", "Side"]

Kind = Literal["node", "leaf", "pair", "link"]
Side = Literal["sends", "receives", "both", ""]

_VERBS: dict[Side, str] = {"sends": "sends", "receives": "receives", "both": "sends and receives", "": ""}


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """A finding against a node's NIC, a leaf switch, the path of a pair, or the only link of two nodes.

    Attributes
    ----------
    kind
        ``link`` is the only link of two nodes, or of two leaves: one end is at fault, but nothing tells which.
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
        """Return one line: who, how slow, compared with what, for how long, and why nobody is excluded."""
        slow = how_slow(self.slowdown)
        if self.kind in ("pair", "link"):
            one, other = self.names
            ways = f"{one} to {other}" + (" and back" if self.side == "both" else "")
            if self.kind == "pair":
                reference = "other transfers of both"
            else:
                reference = "before, or than the other way" if self.slowdown < 3 else "before, or as the other way"
            parts = [f"{ways}: {slow} {reference}", plural(self.rounds)]
            parts += ["either end may be at fault"] if self.kind == "link" else []
            return ", ".join(parts)
        what = "leaf " if self.kind == "leaf" else ""
        others = f"its {peers(self.peers)}"
        parts = [f"{what}{self.names[0]} {_VERBS[self.side]} {slow} {others}", plural(self.rounds)]
        return ", ".join(parts)
