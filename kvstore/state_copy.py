"""The copy of State on another node, as the primary's state server sees it.

A replica on the other node follows the server by the server's own replication.  While commits wait for it, each one is
acknowledged once it is on disk on both nodes: a replica that forces every write to disk confirms a write after that.

A replica may synchronize once, as a user of its own, and never again: after a lost connection it would replace its
files, and confirm commits before the new ones are complete.  So a connection that is lost ends the copy, and the next
copy has another user and an empty folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from laggard.kvstore.client.connection import Endpoint

__all__ = [
    "CopySource",
    "ReplicaUser",
    "await_copy",
    "awaited_key",
    "forget_copy",
    "one_connection",
]

WAIT_MS = 1000
_USER = "laggard-copy"
_MAY = ("-@all", "+replconf", "+ping")
_MAY_SYNCHRONIZE = ("+psync", "+sync")


class _Unconfirmed(redis.ConnectionError):
    """The copy has not confirmed a commit in time; the retry policy tries again."""


def awaited_key(endpoint: Endpoint) -> str:
    """Return the key that exists while commits wait for the copy."""
    return endpoint.key("copy", "awaited")


@contextmanager
def one_connection(client: redis.Redis) -> Iterator[redis.Redis]:
    """Yield a client that uses a single one of a client's connections: the server waits for what that has written."""
    with cast("Any", client).client() as connection:
        yield connection


def forget_copy(endpoint: Endpoint) -> None:
    """Have no commit wait for a copy that an earlier job had."""
    with endpoint.connect() as client:
        client.delete(awaited_key(endpoint))


def await_copy(connection: redis.Redis) -> None:
    """Wait until the copy has everything that this connection has written.

    Raises
    ------
    redis.ConnectionError
        If it does not within a second.
    """
    if not connection.wait(1, WAIT_MS):
        raise _Unconfirmed("the copy of State on another node does not answer")


@dataclass(frozen=True, slots=True)
class ReplicaUser:
    """The user as which one replica synchronizes."""

    name: str
    password: str = field(repr=False)


class CopySource:
    """What the primary's controller does at its state server for the copy.

    Parameters
    ----------
    endpoint
        The server.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._synchronized = 0  # how often a replica had synchronized before this user was admitted
        self.client = endpoint.connect()

    def set_awaited(self, *, awaited: bool) -> None:
        """Have commits wait for the copy from now on, or no longer."""
        key = awaited_key(self._endpoint)
        if awaited:
            self.client.set(key, 1)
        else:
            self.client.delete(key)

    def admit(self) -> ReplicaUser:
        """Let one replica synchronize; every other one is cut off."""
        self.cut_off()
        user = ReplicaUser(f"{_USER}-{secrets.token_hex(4)}", secrets.token_hex(32))
        # A copy that does not keep up is given up after seconds, and its buffer with it.
        self.client.config_set("client-output-buffer-limit", "replica 0 0 0")
        self.client.config_set("repl-diskless-sync", "yes")
        self.client.config_set("repl-diskless-sync-delay", "0")
        self._synchronized = self._full_synchronizations()
        self._set_user(user.name, "reset", "on", f">{user.password}", *_MAY, *_MAY_SYNCHRONIZE)
        return user

    def close_admission(self, user: ReplicaUser) -> bool:
        """Let a replica that has synchronized go on, but never synchronize again; return whether it did so once."""
        self._set_user(user.name, "-psync", "-sync")
        return self._full_synchronizations() == self._synchronized + 1

    def cut_off(self) -> None:
        """Cut all replicas off."""
        for name in cast("list[str]", self.client.acl_users()):  # which the client decodes
            if name.startswith(_USER):
                self.client.acl_deluser(name)

    def answers(self) -> bool:
        """Return whether the copy has everything that has been written so far."""
        key = self._endpoint.key("copy", "asked")
        try:
            with one_connection(self.client) as connection:
                connection.incr(key)
                await_copy(connection)
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _set_user(self, name: str, *rules: str) -> None:
        cast("Any", self.client).execute_command("ACL SETUSER", name, *rules)

    def _full_synchronizations(self) -> int:
        return int(cast("dict[str, int]", self.client.info("stats"))["sync_full"])
