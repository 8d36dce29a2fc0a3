"""A server process that follows a job's state server, and has a copy of its data on this node's disk.

It listens on a socket in the node's private folder only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import redis

from laggard.kvstore.client.connection import Endpoint, write_private
from laggard.kvstore.server.program import choose_program
from laggard.kvstore.state_copy import ReplicaUser
from laggard.system.certificates import Authority
from laggard.system.child_process import ChildProcess

__all__ = ["Replica"]

LOCK = "lock"
_LOG = "server.log"
_AUTHORITY, _CERTIFICATE, _KEY = "authority.crt", "tls.crt", "tls.key"
_ANSWER_S = 5.0
_END_S = 5.0
_CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 700
daemonize no
dir .
save ""
appendonly yes
appendfsync always
auto-aof-rewrite-min-size 256mb
replicaof {host} {port}
masteruser {user}
masterauth {password}
"""
_ENCRYPTED = f"""\
tls-replication yes
tls-ca-cert-file {_AUTHORITY}
tls-cert-file {_CERTIFICATE}
tls-key-file {_KEY}
tls-protocols "TLSv1.2 TLSv1.3"
"""


class Replica:
    """A replica in an empty folder.

    Parameters
    ----------
    directory
        Where its files go; it must not exist.
    socket
        Where it listens; the path must be short.
    endpoint
        The server that it follows.
    user
        As which.

    Raises
    ------
    OSError, ServerStartError
        If it cannot be started.
    """

    def __init__(self, directory: Path, socket: Path, endpoint: Endpoint, user: ReplicaUser) -> None:
        directory.mkdir(mode=0o700, parents=True)
        socket.unlink(missing_ok=True)
        config = _CONFIG.format(
            socket=socket, host=endpoint.host, port=endpoint.port, user=user.name, password=user.password
        )
        if endpoint.encrypted:
            own = Authority().issue("localhost")  # the server asks for none, but the program wants to have one
            for name, text in ((_AUTHORITY, endpoint.authority), (_CERTIFICATE, own.certificate), (_KEY, own.key)):
                write_private(directory / name, text)
            config += _ENCRYPTED
        program = choose_program(None, encrypt=endpoint.encrypted)
        lock_fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._child = ChildProcess(
                [str(program.path), "-"],
                stdin=config.encode(),
                directory=directory,
                log=directory / _LOG,
                inherit_fd=lock_fd,
            )
        finally:
            os.close(lock_fd)
        self._client = redis.Redis(unix_socket_path=str(socket), socket_timeout=_ANSWER_S)

    def is_complete(self) -> bool:
        """Return whether it has everything, on disk too, and follows the server."""
        try:
            persistence, replication = self._client.info("persistence"), self._client.info("replication")
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return bool(
            replication["master_link_status"] == "up"
            and not persistence["loading"]
            and persistence["aof_enabled"]
            and not persistence["aof_rewrite_in_progress"]
            and not persistence["aof_rewrite_scheduled"]
            and persistence["aof_last_bgrewrite_status"] == "ok"
        )

    def complaint(self) -> str:
        """Return why it has ended; empty while it runs."""
        if self._child.process.poll() is None:
            return ""
        lines = self._child.last_output().strip().splitlines()
        return f"its server ended with code {self._child.process.returncode}: {lines[-1] if lines else 'no output'}"

    def stop(self) -> None:
        """End it; what it has confirmed is on disk."""
        self._client.close()
        self._child.process.send_signal(signal.SIGINT)
        try:
            self._child.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.process.kill()
            self._child.process.wait(_END_S)
