"""What the nodes of a launch and its detector tell each other: where nodes listen, what is sent, who meets again."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.collectors.links.prober import FIRST_BYTES, Address
from laggard.collectors.links.schedule import Pair
from laggard.kvstore.control import Control

_NODE = "node "
_TERMS = "terms"


class LinkBoard:
    """The board of a launch: the address of each node (``node <host>``), and what the detector asks of rounds."""

    def __init__(self, control: Control) -> None:
        self._control = control  # of the launch

    def tell_address(self, host: str, address: Address) -> None:
        """Store where a node listens, in place of an earlier address of it."""
        self._control.tell_links(_NODE + host, address)

    def tell_terms(self, n_bytes: int, pairs: Sequence[Pair]) -> None:
        """Store how many bytes a transfer has from the next round on, and which pairs meet even out of their turn."""
        self._control.tell_links(_TERMS, (n_bytes, pairs))

    def terms(self) -> tuple[dict[str, Address], int, list[Pair]]:
        """Return where each node listens, how many bytes a transfer has, and which pairs meet out of their turn."""
        found = self._control.read_links()
        n_bytes, pairs = found.pop(_TERMS, (FIRST_BYTES, ()))
        addresses = {name.removeprefix(_NODE): (str(host), int(port)) for name, (host, port) in found.items()}
        return addresses, int(n_bytes), [(str(one), str(other)) for one, other in pairs]
