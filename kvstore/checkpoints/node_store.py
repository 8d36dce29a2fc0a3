"""Shards in the memory of the nodes, by way of the shard server of this one."""

from __future__ import annotations

import functools
import logging
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from laggard.kvstore.checkpoints.complete import ShardKey, ShardRecord
from laggard.kvstore.checkpoints.connecting import ANSWER_DEADLINE_S, ask_ahead, connect, deadline_s
from laggard.kvstore.checkpoints.layout import Plan, block_range
from laggard.kvstore.checkpoints.mappings import Mappings
from laggard.kvstore.checkpoints.settings import SOCKET, NodeShards, Registry
from laggard.kvstore.checkpoints.shard import Shard, verify_whole
from laggard.kvstore.checkpoints.stores import Unreadable, read_from_folder
from laggard.kvstore.checkpoints.wire import Message, receive, receive_exactly, receive_into, receive_with_file, send
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.errors import (
    DamagedCheckpointError,
    FencedError,
    KVStoreError,
    NestedSaveError,
    ShardMemoryError,
    ShardServerError,
)

_log = logging.getLogger("laggard.kvstore")


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
        self._connection: socket.socket | None = None
        self._mappings = Mappings(
            functools.partial(ask_ahead, self._socket_path), functools.partial(_tell, control, settings.host)
        )
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._n_nodes: int | None = None
        self._pid = os.getpid()

    def __del__(self) -> None:
        self._close()

    def servers(self) -> Mapping[str, str]:
        """Return the ids of the shard servers that run, by host."""
        return {host: each.server for host, each in self._registry.read().items()}

    def write(self, plan: Plan, owner: str, copies: int) -> ShardRecord:
        """Copy a shard into the node's memory."""
        shard_id = secrets.token_hex(8)
        asked = min(copies, self._count_nodes())
        with self._exchange():
            try:
                answer, descriptor = self._take(plan.size_bytes, owner)
            except OSError as error:
                raise self._silent(error) from error
            number = int(answer["file"])
            try:
                self._mappings.write(plan, number, descriptor, int(answer["reserved"]))
            except OSError as error:  # the file system in memory has filled up
                self._close()
                raise ShardMemoryError(self._settings.host, plan.size_bytes, 0, 0, "file system") from error
            finally:
                os.close(descriptor)
            self._taken[shard_id] = number
        return ShardRecord(shard_id, plan.size_bytes, asked, directory=self.has_directory)

    def commit(self, key: ShardKey, record: ShardRecord) -> None:
        """Have the shard server verify, record and copy the shard."""
        with self._exchange():
            try:
                file = self._taken.pop(record.id, None)
                if file is None:  # another thread has found the server gone since
                    raise ConnectionError("it has ended meanwhile")
                connection = self._connected()
                send(connection, {"do": "commit", "file": file, "key": key.record, "id": record.id})
                receive(connection)
            except OSError as error:
                raise self._silent(error) from error

    def prepare(self, owner: str, size_bytes: int) -> None:
        """Have the memory of the owner's next shard ready, in the background."""
        self._mappings.want(owner, size_bytes)

    def read(self, key: ShardKey, record: ShardRecord, *, whole: bool) -> Shard:
        """Map a shard that this node has; fetch one that another node has, whole or by blocks; or read its file."""
        reasons = []
        holders = record.holders(self.servers())
        if holders:
            try:
                if whole or self._settings.host in holders:
                    return Shard.whole(key.record, self._whole(key, record, holders))
                return self._in_part(key, record, holders)
            except (Unreadable, OSError) as error:
                reasons.append(str(error))
        if record.in_directory and self._directory is not None:
            try:
                return read_from_folder(self._directory, key, record)
            except Unreadable as error:
                reasons.append(str(error))
        raise Unreadable("; ".join(reasons) or "the nodes that had it are gone")

    def forget(self, ids: Iterable[str]) -> None:
        """Do nothing: the shard servers see in State what is no longer kept."""

    def _whole(self, key: ShardKey, record: ShardRecord, holders: list[str]) -> memoryview:
        with self._exchange():
            connection = self._connected()
            connection.settimeout(deadline_s(record.size_bytes))
            answer, descriptor = self._ask_for_file({"do": "get", **_question(key, record, holders)})
            if descriptor is None:
                raise Unreadable(str(answer.get("refused", "the shard server sent no file")))
            try:
                sums = receive_exactly(self._connected(), int(answer["sums"]))
                content = memoryview(mmap.mmap(descriptor, record.size_bytes, access=mmap.ACCESS_COPY))
            finally:
                os.close(descriptor)
        # What came from a peer has been verified on its way.
        if sums and (wrong := verify_whole(content, sums, record.sums)):
            raise Unreadable(f"on {self._settings.host}, {wrong}")
        return content

    def _in_part(self, key: ShardKey, record: ShardRecord, holders: list[str]) -> Shard:
        """Return a shard on another node, of which only what is read is fetched, in whole blocks."""

        def read(start: int, stop: int) -> memoryview:
            first, last = block_range(start, stop, record.size_bytes)
            try:
                return self._fetch(key, record, holders, first, last)[start - first : stop - first]
            except (Unreadable, OSError) as error:
                raise DamagedCheckpointError(key.checkpoint.step, str(error), None) from error

        return Shard(key.record, record.size_bytes, read)

    def _fetch(self, key: ShardKey, record: ShardRecord, holders: list[str], start: int, stop: int) -> memoryview:
        """Return verified blocks of a shard on another node."""
        with self._exchange():
            connection = self._connected()
            connection.settimeout(deadline_s(stop - start))
            send(connection, {"do": "read", **_question(key, record, holders), "start": start, "stop": stop})
            answer = receive(connection)
            if "refused" in answer:
                raise Unreadable(str(answer["refused"]))
            content = memoryview(bytearray(stop - start))
            receive_into(connection, content)
            return content

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Have the connection to oneself for a block, and close it if an answer may be left in it."""
        # A signal handler may raise an exception at any moment, and the program save once more before it ends.
        if self._holder == threading.get_ident():
            raise NestedSaveError
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            except (Unreadable, ShardMemoryError):  # the answer
                raise
            except BaseException:
                self._close()
                raise
            finally:
                self._holder = None

    def _take(self, size_bytes: int, owner: str) -> tuple[Message, int]:
        answer, descriptor = self._ask_for_file({"do": "take", "size": size_bytes, "owner": owner})
        if "no_room" in answer:
            why = answer["no_room"]
            raise ShardMemoryError(self._settings.host, size_bytes, why["bound"], why["used"], why["reason"])
        if descriptor is None:
            raise ConnectionError("the shard server sent no file")
        self._mappings.keep_only(answer["files"])
        return answer, descriptor

    def _ask_for_file(self, message: Message) -> tuple[Message, int | None]:
        is_new = self._connection is None
        connection = self._connected()
        try:
            send(connection, message)
            return receive_with_file(connection)
        except OSError as error:
            self._close()
            if is_new or not isinstance(error, ConnectionError):
                raise
            return self._ask_for_file(message)  # the server has ended since, and is started again

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

    def _connected(self) -> socket.socket:
        """Return the connection to the node's shard server, which is started when it is first needed."""
        if self._pid != os.getpid():  # the connection is our parent's
            self._pid, self._connection = os.getpid(), None
        if self._connection is not None:
            self._connection.settimeout(ANSWER_DEADLINE_S)
            return self._connection
        self._connection = connect(self._socket_path, self._ask_for_server)
        return self._connection

    def _ask_for_server(self) -> None:
        self._control.ask("shards", [])

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        self._connection = None
        self._taken.clear()

    def _silent(self, error: OSError) -> ShardServerError:
        return ShardServerError(self._settings.host, str(error) or type(error).__name__)


def _tell(control: Control, host: str, size_bytes: int, error: OSError) -> None:
    size = f"{size_bytes >> 20} MiB"
    notice = f"{host} has no memory ready for a checkpoint of {size}: {error.strerror}; saves take longer"
    with suppress(KVStoreError):
        control.ask("notices", [notice])


def _question(key: ShardKey, record: ShardRecord, holders: list[str]) -> Message:
    return {"key": key.record, "id": record.id, "size": record.size_bytes, "holders": holders, "expected": record.sums}
