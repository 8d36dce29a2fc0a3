"""Sending shards to the shard servers of other nodes, and reading theirs."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from laggard.kvstore.checkpoints.layout import digest
from laggard.kvstore.checkpoints.sealed import new_secret, receive_blocks, send_blocks
from laggard.kvstore.checkpoints.settings import ServerAddress, tls_context
from laggard.kvstore.checkpoints.wire import answer_at_once, receive, receive_exactly, send
from laggard.kvstore.errors import KVStoreError

# A peer that neither sends nor takes anything for this long is given up.
PROGRESS_DEADLINE_S = 10.0
# The peer's last word comes when State has answered it.
ANSWER_DEADLINE_S = 40.0


class TransferError(KVStoreError):
    """Why a peer did not take a shard, or does not have it."""

    reason: str
    template = "{reason}"


class Peers:
    """Connections to other shard servers, encrypted, both ends with a certificate of the job."""

    def __init__(self, folder: Path) -> None:
        self._context = tls_context(folder, ssl.Purpose.SERVER_AUTH)

    def put(self, peer: ServerAddress, key: str, shard_id: str, sums: bytes, content: memoryview) -> None:
        """Have a peer keep a shard; on return it has verified and recorded its copy."""
        with self._connected(peer) as connection:
            secret = new_secret()
            message = {"do": "put", "key": key, "id": shard_id, "size": content.nbytes, "sums": len(sums)}
            send(connection, message | {"secret": secret}, sums)
            _raise_if_refused(receive(connection))
            send_blocks(connection, secret, content)
            connection.settimeout(ANSWER_DEADLINE_S)
            _raise_if_refused(receive(connection))

    def read(
        self, peer: ServerAddress, shard_id: str, expected: int, start: int, stop: int, blocks: Iterable[memoryview]
    ) -> None:
        """Fill the blocks of a range of a peer's shard, which begins where one does, and verify them."""
        with self._connected(peer) as connection:
            secret = new_secret()
            message = {"do": "read", "id": shard_id, "start": start, "stop": stop}
            send(connection, message | {"secret": secret})
            answer = receive(connection)
            _raise_if_refused(answer)
            sums = receive_exactly(connection, int(answer["sums"]))
            if digest(sums) != expected:
                raise TransferError("its checksums are not those that State knows")
            send(connection, {})  # it may come
            receive_blocks(connection, secret, sums, start, blocks)

    @contextmanager
    def _connected(self, peer: ServerAddress) -> Iterator[ssl.SSLSocket]:
        with (
            socket.create_connection((peer.address, peer.port), PROGRESS_DEADLINE_S) as plain,
            self._context.wrap_socket(plain, server_hostname=peer.address) as connection,
        ):
            answer_at_once(connection)
            connection.settimeout(PROGRESS_DEADLINE_S)
            yield connection


def _raise_if_refused(answer: dict[str, object]) -> None:
    if "refused" in answer:
        raise TransferError(str(answer["refused"]))
