"""What the nodes of a launch tell each other in the state server before they measure: where they listen, and how much.

Key of a job: ``links:<launch>``, a hash with the address of each node (``node <host>``), and how many bytes a transfer
has (``bytes``).
"""

from __future__ import annotations

import json
from typing import cast

import redis

from laggard.collectors.links.prober import FIRST_BYTES, Address
from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.fence import FencedWriter
from laggard.kvstore.client.retry import RETRY_FOR_S, RetryPolicy

_NODE = "node "
_BYTES = "bytes"


class LinkBoard:
    """The board of this process's launch. Its requests wait for a server that is being restarted."""

    def __init__(self, session: Session) -> None:
        endpoint, launch = session.endpoint, session.environment.launch
        self._client: redis.Redis = session.client
        self._key = endpoint.key("links", str(launch))
        self._writer = FencedWriter(session.client, endpoint, launch)
        self._retry = RetryPolicy(endpoint, RETRY_FOR_S)

    def tell_address(self, host: str, address: Address) -> None:
        """Store where a node listens, in place of an earlier address of it."""
        self._write(_NODE + host, json.dumps(address))

    def tell_bytes(self, n_bytes: int) -> None:
        """Store how many bytes a transfer has from the next round on."""
        self._write(_BYTES, str(n_bytes))

    def terms(self) -> tuple[dict[str, Address], int]:
        """Return where each node listens, and how many bytes a transfer has."""
        kept = self._retry.call(lambda: cast("dict[bytes, bytes]", self._client.hgetall(self._key)))
        found = {name.decode(): text.decode() for name, text in kept.items()}
        addresses = {
            name.removeprefix(_NODE): (str(host), int(port))
            for name, text in found.items()
            if name.startswith(_NODE)
            for host, port in [json.loads(text)]
        }
        return addresses, int(found.get(_BYTES, FIRST_BYTES))

    def _write(self, field: str, value: str) -> None:
        self._retry.call(lambda: self._writer.execute([("HSET", self._key, field, value)]))
