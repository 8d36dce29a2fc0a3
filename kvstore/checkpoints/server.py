"""A node's shard server: holds the shards of checkpoints in the node's memory, and copies of those of its peers.

Every node has one as a sidecar of its agent (``python -m laggard.kvstore.checkpoints.server FOLDER``).  Programs of the
node reach it through a socket in the node's private folder, peers through TLS, for which both need a certificate of the
job. It ends with its agent, and its memory with it, since the files have no names.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from laggard.kvstore.checkpoints.bounds import MEMORY_FOLDER, default_memory
from laggard.kvstore.checkpoints.complete import ShardKey
from laggard.kvstore.checkpoints.copying import Held, Holdings
from laggard.kvstore.checkpoints.job import JobView
from laggard.kvstore.checkpoints.memory import NoRoom, ShardMemory
from laggard.kvstore.checkpoints.peers import PROGRESS_DEADLINE_S, Peers, TransferError
from laggard.kvstore.checkpoints.sealed import receive_blocks, send_blocks
from laggard.kvstore.checkpoints.settings import SETTINGS_FILE, SOCKET, NodeShards, Registry, ServerAddress, tls_context
from laggard.kvstore.checkpoints.shard_file import ShardFile
from laggard.kvstore.checkpoints.wire import Message, answer_at_once, receive, receive_exactly, send
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.environment import ENDPOINT_FILE
from laggard.logs import configure_logging
from laggard.system.ports import listen
from laggard.system.unproven import Unproven, accepted, shut_down

_log = logging.getLogger("laggard.kvstore.checkpoints")

# How long to look for what is no longer kept before a shard is refused.
ROOM_DEADLINE_S = 1.0
_POLL_S = 0.1  # it is woken when a shard has been worked on
_BACKLOG = 128  # ranks of a node that connect at one moment
_LONGEST_SUMS_BYTES = 64 << 20  # of a shard of 32 TiB


class ShardServer:
    """The shard server of one node."""

    def __init__(self, folder: Path, settings: NodeShards, endpoint: Endpoint) -> None:
        where, default_bytes = default_memory(MEMORY_FOLDER, settings.sharers)
        client = endpoint.connect()
        self._folder = folder  # the node's private folder
        self._settings = settings  # the node's
        self._memory = ShardMemory(where, settings.memory_bytes or default_bytes)
        self._registry = Registry(client, endpoint, settings.run)
        self._job = JobView(client, endpoint, self._registry, settings.host, secrets.token_hex(8))
        self._peers = Peers(folder)
        directory = None if settings.directory is None else Path(settings.directory)
        self._holdings = Holdings(self._memory, self._job, self._peers, directory)
        self._context = tls_context(folder, ssl.Purpose.CLIENT_AUTH)
        self._peers_listener = listen(settings.address, _BACKLOG)
        self._unproven = Unproven[socket.socket](shut_down)

    def start(self) -> None:
        """Listen, and have the others know."""
        path = self._folder / SOCKET
        path.unlink(missing_ok=True)  # of one that was killed
        programs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        programs.bind(str(path))
        programs.listen(_BACKLOG)
        for port in ((programs, self._serve_program), (self._peers_listener, self._serve_peer)):
            threading.Thread(target=self._accept, args=port, daemon=True).start()
        own_port = int(self._peers_listener.getsockname()[1])
        address = ServerAddress(self._job.server, self._settings.address, own_port)
        self._registry.add(self._settings.host, address)
        threading.Thread(target=self._holdings.keep_looking, daemon=True).start()

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        for connection, _ in accepted(listener):
            threading.Thread(target=self._converse, args=(connection, serve), daemon=True).start()

    def _converse(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        try:
            with connection:
                serve(connection)
        except OSError as error:
            _log.debug("a connection has ended: %s", error)
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("a message is none of ours: %r", error)

    # Programs of this node.

    def _serve_program(self, connection: socket.socket) -> None:
        message = receive(connection)
        match message["do"]:
            case "take":
                self._take(connection, message)
            case "prepare":
                self._prepare(connection, message)
            case "read":
                self._read(connection, message)
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")

    def _take(self, connection: socket.socket, message: Message) -> None:
        """Give a program a file for a shard, and hold the shard once the program has written it."""
        self._holdings.look()  # what is no longer kept is memory for the next one
        try:
            file = self._wait_for_room(int(message["size"]), str(message["owner"]))
        except NoRoom as full:
            send(connection, {"no_room": full.args})
            return
        try:
            answer = {"file": file.number, "reserved": file.reserved_bytes, "files": self._memory.numbers()}
            send(connection, answer | {"server": self._job.server}, file=file.descriptor)
            written = receive(connection)
            sums = receive_exactly(connection, int(written["sums"]))
            held = Held(ShardKey.of_record(written["key"]), str(written["id"]), file, sums, is_own=True)
        except BaseException:
            self._memory.give_back(file)
            raise
        with self._holdings.adding(held):
            send(connection, {})
            connection.recv(1)  # the program announces the shard, or ends

    def _prepare(self, connection: socket.socket, message: Message) -> None:
        """Give a program a file whose memory it wants to have ready for its next shard."""
        try:
            found = self._memory.prepare(int(message["size"]), str(message["owner"]))
        except (OSError, NoRoom) as error:
            _log.warning("no file can be opened: %s", error)
            found = None
        if found is None:
            send(connection, {})
            return
        number, descriptor = found
        try:
            send(connection, {"file": number}, file=descriptor)
        finally:
            os.close(descriptor)

    def _wait_for_room(self, size_bytes: int, owner: str) -> ShardFile:
        until_s = time.monotonic() + ROOM_DEADLINE_S
        while True:
            try:
                return self._memory.take(size_bytes, owner)
            except NoRoom as full:
                if size_bytes > full.bound_bytes or time.monotonic() > until_s:
                    raise
            self._holdings.look()  # some may be no longer kept
            with self._holdings.changed:
                self._holdings.changed.wait(_POLL_S)

    def _read(self, connection: socket.socket, message: Message) -> None:
        """Give a program a range of a shard as a file: of this node's own all of it, or blocks fetched from a peer."""
        is_own = self._settings.host in message["holders"]
        held = self._holdings.find(message["id"]) if is_own else None
        if held is not None:
            with self._memory.reading(held.file) as file:
                if file is not None:
                    self._memory.lend(file)
                    send(connection, {"sums": len(held.sums)}, held.sums, file=file.descriptor)
                    return
        descriptor = self._memory.unnamed()
        try:
            why = self._fetch(message, descriptor)
            send(connection, {"refused": why} if why else {"sums": 0}, file=None if why else descriptor)
        finally:
            os.close(descriptor)

    def _fetch(self, message: Message, descriptor: int) -> str:
        """Write blocks from whichever peer has them; return why that was not possible, empty if it was."""
        start, stop = int(message["start"]), int(message["stop"])
        file = ShardFile(0, descriptor, "", size_bytes=stop - start)
        file.resize(stop - start)
        servers = self._registry.read()
        reasons = []
        for host in message["holders"]:
            if host not in servers or host == self._settings.host:
                continue
            try:
                wanted = (message["id"], int(message["expected"]), start, stop)
                self._peers.read(servers[host], *wanted, file.to_fill())
            except (TransferError, OSError) as error:
                reasons.append(f"{host}: {error}")
            else:
                return ""
        return "; ".join(reasons) or "no node has it"

    # Shard servers of other nodes.

    def _serve_peer(self, connection: socket.socket) -> None:
        answer_at_once(connection)
        connection.settimeout(PROGRESS_DEADLINE_S)
        with self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as encrypted:
            with self._unproven.holding(encrypted):
                encrypted.do_handshake()
            message = receive(encrypted)
            match message["do"]:
                case "put":
                    self._receive_copy(encrypted, message)
                case "read":
                    self._send_blocks(encrypted, message)
                case unknown:
                    raise ValueError(f"unknown request {unknown!r}")

    def _receive_copy(self, connection: socket.socket, message: Message) -> None:
        key, size_bytes, sums_bytes = ShardKey.of_record(message["key"]), int(message["size"]), int(message["sums"])
        if sums_bytes > _LONGEST_SUMS_BYTES:
            raise ValueError(f"checksums of {sums_bytes} bytes")
        sums = receive_exactly(connection, sums_bytes)
        try:
            file = self._wait_for_room(size_bytes, key.owner)
        except NoRoom as full:
            send(connection, {"refused": f"it has no room ({full.bound_bytes} bytes at most)"})
            return
        try:
            send(connection, {})
            receive_blocks(connection, message["secret"], sums, 0, file.to_fill())
        except BaseException:
            self._memory.give_back(file)
            raise
        self._holdings.add_copy(Held(key, str(message["id"]), file, sums))
        send(connection, {})

    def _send_blocks(self, connection: socket.socket, message: Message) -> None:
        held = self._holdings.find(message["id"])
        if held is None:
            send(connection, {"refused": "it is not here"})
            return
        with self._memory.reading(held.file) as file:
            if file is None:
                send(connection, {"refused": "it is not here any more"})
                return
            send(connection, {"sums": len(held.sums)}, held.sums)
            receive(connection)  # it may come
            send_blocks(connection, message["secret"], file.content()[int(message["start"]) : int(message["stop"])])


def main(folder: Path) -> None:
    """Serve until the agent, at the other end of standard input, has ended."""
    configure_logging()
    text = (folder / SETTINGS_FILE).read_text(encoding="utf-8")
    endpoint = Endpoint.load(Path(os.environ[ENDPOINT_FILE]))
    ShardServer(folder, NodeShards.of_json(text), endpoint).start()
    while sys.stdin.buffer.read(1 << 16):
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
