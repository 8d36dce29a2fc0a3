"""Commits: one script applies a transaction, whole or not at all."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import FENCE_LUA, launch_key, raise_if_fenced
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import ConflictError, CorruptValueError, NotACounterError, NotAListError
from laggard.kvstore.values.decoding import Buffer

# A process may be stopped for days between a commit whose answer is lost and its next attempt.
ACKNOWLEDGEMENT_EXPIRY_S = 7 * 86_400
_COMMIT_LUA = FENCE_LUA + files("laggard.kvstore.state").joinpath("commit.lua").read_text(encoding="utf-8")

Operation = tuple[str, str, Sequence[Buffer | int]]
"""What a transaction does to one key: ``value``, ``list``, ``append``, ``increment`` or ``delete``, the key, and the
pieces as they are stored; the only one of an increment is its amount."""


class Committer:
    """Applies the transactions of one process."""

    def __init__(
        self, client: redis.Redis, endpoint: Endpoint, launch: int, *, retry: RetryPolicy, prefix: str
    ) -> None:
        self._launch = launch
        self._call = retry.call
        self._prefix = prefix  # of all keys
        self._keys = [launch_key(endpoint), prefix + "index", prefix + "meta"]
        self._commit_script = client.register_script(_COMMIT_LUA)
        self._acknowledged = threading.local()  # each thread's newest acknowledgement
        # Of those before it: longer than anybody retries a commit.
        self._former_expiry_s = 60 + 2 * retry.retry_for_s

    def commit(self, reads: Mapping[str, str], operations: Sequence[Operation]) -> None:
        """Apply all operations if everything that was read still has the given version, else none."""
        transaction = self.fresh_id()
        expiries_ms = [int(1000 * expiry_s) for expiry_s in (ACKNOWLEDGEMENT_EXPIRY_S, self._former_expiry_s)]
        arguments: list[Buffer | str | int] = [self._launch, self._prefix, *expiries_ms, len(reads)]
        for key, version in reads.items():
            arguments += [key, version]
        for n, (name, key, pieces) in enumerate(operations):
            arguments += [name, key, f"{transaction}.{n}", len(pieces), *pieces]
        # The same name in every retry, so that the script recognizes a transaction that it has already committed.
        acknowledgement = f"{self._prefix}ack:{transaction}"
        keys = [*self._keys, acknowledgement, getattr(self._acknowledged, "newest", acknowledgement)]
        reply = self._call(lambda: cast("list[bytes]", self._commit_script(keys=keys, args=arguments)))
        raise_if_fenced(reply, self._launch)
        if reply[0] != b"ok":
            raise _refusal(reply[0], reply[1].decode())
        if operations:
            self._acknowledged.newest = acknowledgement

    def fresh_id(self) -> str:
        """Return an id that was never used before; it begins with the launch."""
        return f"{self._launch}.{secrets.token_hex(8)}"


def _refusal(kind: bytes, detail: str) -> Exception:
    match kind:
        case b"conflict":
            return ConflictError(repr(detail) if detail else "the set of keys")
        case b"notalist":
            return NotAListError(detail)
        case b"notacounter":
            return NotACounterError(detail)
    return CorruptValueError(detail, "its upload is incomplete")
