"""What the nodes of a launch tell each other before they measure: where they listen, and how much is sent."""

from __future__ import annotations

from laggard.collectors.links.prober import FIRST_BYTES, Address
from laggard.kvstore.control import Control

_NODE = "node "
_BYTES = "bytes"


class LinkBoard:
    """The board of a launch: the address of each node (``node <host>``), and how many bytes a transfer has."""

    def __init__(self, control: Control) -> None:
        self._control = control  # of the launch

    def tell_address(self, host: str, address: Address) -> None:
        """Store where a node listens, in place of an earlier address of it."""
        self._control.tell_links(_NODE + host, address)

    def tell_bytes(self, n_bytes: int) -> None:
        """Store how many bytes a transfer has from the next round on."""
        self._control.tell_links(_BYTES, n_bytes)

    def terms(self) -> tuple[dict[str, Address], int]:
        """Return where each node listens, and how many bytes a transfer has."""
        found = self._control.read_links()
        n_bytes = int(found.pop(_BYTES, FIRST_BYTES))
        return {name.removeprefix(_NODE): (str(host), int(port)) for name, (host, port) in found.items()}, n_bytes
