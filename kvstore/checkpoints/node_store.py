"""Shards in the memory of the nodes, by way of the shard server of this one."""

from __future__ import annotations

import functools
import logging
import mmap
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from laggard.kvstore.checkpoints.complete import ShardKey, ShardRecord
from laggard.kvstore.checkpoints.layout import Plan, block_range, digest
from laggard.kvstore.checkpoints.mappings import Mappings
from laggard.kvstore.checkpoints.settings import SOCKET, NodeShards, Registry
from laggard.kvstore.checkpoints.shard import Shard, verify_whole
from laggard.kvstore.checkpoints.stores import Unreadable, read_from_folder
from laggard.kvstore.checkpoints.wire import receive, receive_exactly, receive_with_file, send
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.errors import (
    DamagedCheckpointError,
    FencedError,
    KVStoreError,
    ShardMemoryError,
    ShardServerError,
)

_log = logging.getLogger("laggard.kvstore")

# The servers are started when a program first has a checkpointer.
START_DEADLINE_S = 60.0
ANSWER_DEADLINE_S = 90.0  # longer than a peer is waited for, and State
# What a peer sends, and how much memory is cleared, in a second at the very least.
_SLOWEST_BYTES_PER_S = 20e6
_POLL_S = 0.02  # a shard server starts in a second


@functools.cache
def current_store() -> NodeStore | None:
    """Return the store of this process's node, the same one each time; None if the job has none."""
    found = NodeShards.current()
    if found is None:
        return None
    session = current_session()
    control = Control(session.client, session.endpoint, session.environment.launch)
    store = NodeStore(*found, control, Registry(session.client, session.endpoint, found[0].run))
    if found[0].host not in store.servers():
        with suppress(FencedError):  # whatever is saved is refused too
            control.ask("shards", [])  # now: while a program is asked to stop, the controller starts nothing
    return store


class NodeStore:
    """Shards in the memory of the nodes, by way of the shard server of this one."""

    def __init__(self, settings: NodeShards, folder: Path, control: Control, registry: Registry) -> None:
        self._settings = settings  # of the node
        self._socket_path = folder / SOCKET
        self._control = control  # asks for the servers to be started, and knows the launch's nodes
        self._registry = registry  # the servers
        self._directory = None if settings.directory is None else Path(settings.directory)
        self.has_directory = self._directory is not None
        self._mappings = Mappings(self._ask_ahead, self._tell)
        self._n_nodes: int | None = None

    def servers(self) -> Mapping[str, str]:
        """Return the ids of the shard servers that run, by host."""
        return self._registry.ids()

    def write(self, plan: Plan, key: ShardKey, copies: int, announce: Callable[[ShardRecord], None]) -> None:
        """Copy a shard into the node's memory, have the shard server hold it, and announce it for it to be copied."""
        asked = min(copies, self._count_nodes())
        record = ShardRecord(secrets.token_hex(8), plan.size_bytes, asked, directory=self.has_directory)
        with self._connected() as connection:
            send(connection, {"do": "take", "size": plan.size_bytes, "owner": key.owner})
            answer, descriptor = receive_with_file(connection)
            if descriptor is None:
                raise ShardMemoryError(self._settings.host, plan.size_bytes, *answer["no_room"])
            self._mappings.keep_only(answer["files"])
            try:
                sums = self._mappings.write(plan, int(answer["file"]), descriptor, int(answer["reserved"]))
            except OSError as error:  # the file system in memory has filled up
                raise ShardMemoryError(self._settings.host, plan.size_bytes, 0, 0, "file system") from error
            finally:
                os.close(descriptor)
            send(connection, {"key": key.record, "id": record.id, "sums": len(sums)}, sums)
            receive(connection)
            announce(replace(record, copies={self._settings.host: answer["server"]}, sums=digest(sums)))
            # The end of the connection, however it comes, has the server look whether it is announced.

    def prepare(self, owner: str, size_bytes: int) -> None:
        """Have the memory of the owner's next shard ready, in the background."""
        self._mappings.want(owner, size_bytes)

    def read(self, key: ShardKey, record: ShardRecord, *, whole: bool) -> Shard:
        """Map a shard that this node has; fetch one that another node has, whole or by blocks; or read its file."""
        reasons = []
        holders = record.holders(self.servers())
        here = [host for host in holders if host == self._settings.host]
        for asked in filter(None, (here, [host for host in holders if host not in here])):
            try:
                if whole or asked is here:
                    return Shard.whole(key.record, self._fetch(record, asked, 0, record.size_bytes))
                return self._in_part(key, record, asked)
            except (Unreadable, ShardServerError) as error:
                reasons.append(str(error))
        if record.in_directory and self._directory is not None:
            try:
                return read_from_folder(self._directory, key, record)
            except Unreadable as error:
                reasons.append(str(error))
        raise Unreadable("; ".join(reasons) or "the nodes that had it are gone")

    def forget(self, ids: Iterable[str]) -> None:
        """Do nothing: the shard servers see in State what is no longer kept."""

    def _in_part(self, key: ShardKey, record: ShardRecord, holders: list[str]) -> Shard:
        """Return a shard on another node, of which only what is read is fetched, in whole blocks."""

        def read(start: int, stop: int) -> memoryview:
            first, last = block_range(start, stop, record.size_bytes)
            try:
                return self._fetch(record, holders, first, last)[start - first : stop - first]
            except (Unreadable, ShardServerError) as error:
                raise DamagedCheckpointError(key.checkpoint.step, str(error), None) from error

        return Shard(key.record, read)

    def _fetch(self, record: ShardRecord, holders: list[str], start: int, stop: int) -> memoryview:
        """Return a range of a shard, mapped and verified: all of it, or blocks of one on another node."""
        question = {"do": "read", "id": record.id, "holders": holders, "expected": record.sums}
        with self._connected(stop - start) as connection:
            send(connection, question | {"start": start, "stop": stop})
            answer, descriptor = receive_with_file(connection)
            if descriptor is None:
                raise Unreadable(str(answer["refused"]))
            try:
                sums = receive_exactly(connection, int(answer["sums"]))
                content = memoryview(mmap.mmap(descriptor, stop - start, access=mmap.ACCESS_COPY))
            finally:
                os.close(descriptor)
        # What came from a peer has been verified on its way.
        if sums and (wrong := verify_whole(content, sums, record.sums)):
            raise Unreadable(f"on {self._settings.host}, {wrong}")
        return content

    def _ask_ahead(self, owner: str, size_bytes: int) -> tuple[int, int] | None:
        """Return number and descriptor of a file for a shard to come."""
        with self._connected(size_bytes) as connection:
            send(connection, {"do": "prepare", "owner": owner, "size": size_bytes})
            answer, descriptor = receive_with_file(connection)
            return None if descriptor is None else (int(answer["file"]), descriptor)

    @contextmanager
    def _connected(self, size_bytes: int = 0) -> Iterator[socket.socket]:
        """Connect to the node's shard server, for one exchange that takes as long as the transfer of so many bytes."""
        try:
            with self._connect() as connection:
                connection.settimeout(ANSWER_DEADLINE_S + size_bytes / _SLOWEST_BYTES_PER_S)
                yield connection
        except OSError as error:
            if isinstance(error, KVStoreError):  # of State
                raise
            raise ShardServerError(self._settings.host, str(error) or type(error).__name__) from error

    def _connect(self) -> socket.socket:
        """Connect to the shard server, which may be about to start; ask for it if it does not listen."""
        until_s = time.monotonic() + START_DEADLINE_S
        has_asked = False
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self._socket_path))
            except OSError:
                connection.close()
                if time.monotonic() > until_s:
                    raise
            else:
                return connection
            if not has_asked:
                self._control.ask("shards", [])
                has_asked = True
            time.sleep(_POLL_S)

    def _count_nodes(self) -> int:
        if self._n_nodes is None:
            launch = self._control.read_launch()
            self._n_nodes = len(launch.nodes) + len(launch.reserve)
            if self._n_nodes == 1 and not self.has_directory:
                _log.warning(
                    "checkpoints are in the memory of %s alone, and lost with it: the launch has no other node, and "
                    "the job no --checkpoint-dir",
                    self._settings.host,
                )
        return self._n_nodes

    def _tell(self, size_bytes: int, error: OSError) -> None:
        notice = (
            f"{self._settings.host} has no memory ready for a checkpoint of {size_bytes >> 20} MiB: {error.strerror}; "
            "saves take longer"
        )
        with suppress(KVStoreError):
            self._control.ask("notices", [notice])
