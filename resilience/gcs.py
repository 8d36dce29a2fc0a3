"""Ray's own list of nodes, read without becoming a Ray driver (a driver would take part in the job)."""

from __future__ import annotations

import os

__all__ = ["NodeDirectory"]

_ALIVE = 0
_TIMEOUT_S = 5.0


class NodeDirectory:
    """The nodes that Ray's head knows.

    Parameters
    ----------
    address
        ``host:port`` of the head, which must be listening.
    environment
        The cluster's variables: the client finds its token through them.
    """

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        # The client reads its token's path from this process's environment, once, when it is loaded.
        os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_AUTH_")})
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        self._client = GcsClient(address=address)

    def alive_addresses(self) -> set[str]:
        """Return the addresses of the nodes that are up; none where the head does not answer."""
        from ray.exceptions import RpcError

        try:
            nodes = self._client.get_all_node_info(timeout=_TIMEOUT_S)
        except RpcError:
            return set()
        return {node.node_manager_address for node in nodes.values() if node.state == _ALIVE}
