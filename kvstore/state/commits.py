"""Commits: a small transaction is applied by one script; a large one is staged in parts, which one step makes count.

    parts ──commit.lua──▶ staged:TRANSACTION ──last part: index[""] = TRANSACTION──▶ settle.lua ──▶ index

Until the last part nobody sees a staged record; from then on every reader looks there first.  Moving the records to the
index takes many short steps, any of which any client may do: whoever commits next goes on if the first one has died.
While a transaction checks what it has read, or extends what is stored, in more than one part, it holds a lock, and
other commits wait.  The lock of a process that has died expires.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import FENCE_LUA, launch_key, raise_if_fenced
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import (
    ConflictError,
    CorruptValueError,
    KVStoreError,
    NotACounterError,
    NotAListError,
    StateFullError,
)
from laggard.kvstore.state.parts import PART_BYTES, Operation, Part, cut
from laggard.kvstore.values.decoding import Buffer

# A process may be stopped for days between a commit whose answer is lost and its next attempt.
ACKNOWLEDGEMENT_EXPIRY_S = 7 * 86_400
# A transaction of this launch to which nothing was added for this long belongs to a process that is gone.
_ABANDONED_AFTER_S = 3600
_SETTLED_AT_ONCE = 500  # half of PART_SIZE: a record is looked up and written
# How many records of another's transaction a commit settles.
_HELP = 100

_STORED_LUA = files("laggard.kvstore.state").joinpath("stored.lua").read_text(encoding="utf-8")
_COMMIT_LUA = (
    FENCE_LUA + _STORED_LUA + files("laggard.kvstore.state").joinpath("commit.lua").read_text(encoding="utf-8")
)
_SETTLE_LUA = _STORED_LUA + files("laggard.kvstore.state").joinpath("settle.lua").read_text(encoding="utf-8")


class _Wait(redis.ConnectionError):
    """Another transaction holds the lock; the retry policy tries again."""


class Committer:
    """Applies the transactions of one process."""

    def __init__(
        self, client: redis.Redis, endpoint: Endpoint, launch: int, *, retry: RetryPolicy, prefix: str
    ) -> None:
        self._client = client
        self._launch = launch
        self._call = retry.call
        self._prefix = prefix  # of all keys
        self._keys = [launch_key(endpoint), prefix + "index", prefix + "meta"]
        self._commit_script = client.register_script(_COMMIT_LUA)
        self._settle_script = client.register_script(_SETTLE_LUA)
        self._helped = ("", "0")  # whose records were settled last, and where to go on
        self._acknowledged = threading.local()  # each thread's newest acknowledgement
        # Of those before it: longer than anybody retries a commit.
        self._former_expiry_s = 60 + 2 * retry.retry_for_s

    def commit(self, reads: Mapping[str, str], operations: Sequence[Operation]) -> None:
        """Apply all operations if everything that was read still has the given version, else none."""
        transaction = self.fresh_id()
        parts = cut(reads, operations)
        if len(parts) == 1:
            settling = self._send(transaction, parts[0])
            if settling:
                with suppress(redis.RedisError, KVStoreError):  # whoever commits next goes on
                    self._help(settling.decode())
        else:
            self._commit_in_parts(transaction, parts)

    def _commit_in_parts(self, transaction: str, parts: Sequence[Part]) -> None:
        self.collect_abandoned()
        writes = sum(len(part.operations) for part in parts)
        nbytes = sum(operation.nbytes for part in parts for operation in part.operations)
        at_once = max(1, min(_SETTLED_AT_ONCE, PART_BYTES * writes // (nbytes or 1)))
        try:
            done = 0
            while done < len(parts):
                part = parts[done]
                is_last = done == len(parts) - 1
                locking = "ignored"
                if part.needs_lock:
                    locking = "held" if done and parts[done - 1].needs_lock else "heeded" if is_last else "taken"
                elif is_last:
                    locking = "heeded"
                done = self._send_part(
                    transaction, part, done + 1, locking, is_last=is_last and writes > 0, at_once=at_once
                )
        except (ConflictError, NotAListError, NotACounterError, CorruptValueError, StateFullError):
            with suppress(redis.RedisError, KVStoreError):  # else the next launch does it
                self.settle(transaction)
            raise
        # Its records move to the index; what has only read leaves nothing.
        with suppress(redis.RedisError, KVStoreError):  # it is committed, and whoever commits next goes on
            self.settle(transaction)

    def _send_part(
        self, transaction: str, part: Part, number: int, locking: str, *, is_last: bool, at_once: int
    ) -> int:
        """Send a part and return the number of the last part that the server has."""
        while True:
            try:
                self._send(transaction, part, number=number, locking=locking, is_last=is_last, at_once=at_once)
            except _Resume as resume:
                return resume.done
            except _Unsettled as unsettled:
                self.settle(unsettled.transaction)
            else:
                return number

    def _send(
        self,
        transaction: str,
        part: Part,
        *,
        number: int = 0,
        locking: str = "heeded",
        is_last: bool = True,
        at_once: int = 0,
    ) -> bytes:
        expiries_ms = [int(1000 * expiry_s) for expiry_s in (ACKNOWLEDGEMENT_EXPIRY_S, self._former_expiry_s)]
        arguments: list[Buffer | str | int] = [self._launch, self._prefix, *expiries_ms]
        arguments += [transaction, number, locking, int(is_last and number > 0), at_once, len(part.reads)]
        for key, version in part.reads.items():
            arguments += [key, version]
        for n, each in enumerate(part.operations):
            arguments += [each.name, each.key, f"{transaction}.{number}.{n}", len(each.pieces), *each.pieces]
        # The same name in every retry, so that the script recognizes a transaction that it has already committed.
        acknowledgement = f"{self._prefix}ack:{transaction}"
        keys = [*self._keys, acknowledgement, getattr(self._acknowledged, "newest", acknowledgement)]
        kind, detail, *rest = self._call(lambda: self._run(keys, arguments))
        if kind != b"ok":
            raise _refusal(kind, detail.decode())
        if is_last and (number or part.operations):
            self._acknowledged.newest = acknowledgement
        return rest[0]

    def _run(self, keys: list[str], arguments: list[Buffer | str | int]) -> list[bytes]:
        reply = cast("list[bytes]", self._commit_script(keys=keys, args=arguments))
        raise_if_fenced(reply, self._launch)
        if reply[0] == b"wait":
            raise _Wait("another process is committing a large transaction")
        return reply

    def settle(self, transaction: str) -> None:
        """Move the staged records of a transaction to the index if it is committed; delete them if it is not."""
        cursor, left = "0", True
        while left:
            cursor, left = self._settle_some(transaction, cursor, _SETTLED_AT_ONCE)

    def _settle_some(self, transaction: str, cursor: str, count: int) -> tuple[str, bool]:
        arguments: list[str | int] = [self._launch, self._prefix, transaction, cursor, count]
        reply = self._call(lambda: cast("tuple[bytes, int]", self._settle_script(keys=self._keys, args=arguments)))
        return reply[0].decode(), bool(reply[1])

    def _help(self, transaction: str) -> None:
        """Settle some of another's records: it may have died."""
        helped, cursor = self._helped
        cursor, _ = self._settle_some(transaction, cursor if helped == transaction else "0", _HELP)
        self._helped = (transaction, cursor)

    def collect_abandoned(self) -> None:
        """Delete what was staged by earlier launches, or by processes that are gone, and was not committed."""
        get_open = self._client.hgetall
        opened = self._call(lambda: cast("dict[bytes, bytes]", get_open(self._prefix + "open")))
        now_s = self._call(self._client.time)[0] if opened else 0
        for name, since_s in opened.items():
            transaction = name.decode()
            if int(transaction.partition(".")[0]) < self._launch or int(since_s) < now_s - _ABANDONED_AFTER_S:
                self.settle(transaction)

    def fresh_id(self) -> str:
        """Return an id that was never used before; it begins with the launch."""
        return f"{self._launch}.{secrets.token_hex(8)}"


class _Resume(Exception):  # noqa: N818 - a signal between two functions
    """The server has lost parts, as it may with ``everysec`` when it dies."""

    def __init__(self, done: int) -> None:
        super().__init__(done)
        self.done = done


class _Unsettled(Exception):  # noqa: N818 - a signal between two functions
    """Another transaction's records must move to the index first."""

    def __init__(self, transaction: str) -> None:
        super().__init__(transaction)
        self.transaction = transaction


def _refusal(kind: bytes, detail: str) -> Exception:
    match kind:
        case b"conflict":
            return ConflictError(repr(detail) if detail else "the set of keys")
        case b"lost":
            return ConflictError("State, while this one paused for seconds,")
        case b"resume":
            return _Resume(int(detail))
        case b"unsettled":
            return _Unsettled(detail)
        case b"notalist":
            return NotAListError(detail)
        case b"notacounter":
            return NotACounterError(detail)
    return CorruptValueError(detail, "its upload is incomplete")
