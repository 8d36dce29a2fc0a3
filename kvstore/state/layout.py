r"""How State is stored in the server; all keys are under ``laggard:{job}:state``.

``index``               hash: user's key -> record
``meta``                hash: ``commits`` (number of commits so far), ``keys`` (changes when a key is added or deleted)
``list:ID``             list: the pieces of a list;  ``list:ID:big``: which of them have chunks
``chunk:ID:N``          one chunk of a large piece
``ack:TRANSACTION``     this transaction is committed; expires, for a thread's newest one after a week

A record is ``VERSION PIECE``, ``VERSION lID COUNT\n`` for a list or ``VERSION nNUMBER\n`` for an integer that was
incremented, where VERSION is the number of the commit that wrote it.
A piece is ``TAG ID CHUNKS BYTES CRC\n`` and its content: the value itself, or for a large one the sizes and checksums
of its chunks.
Tags: ``v`` the only value of a key, ``i`` an item of a list, ``b`` several items of a list.

Chunks are written first, under an id that was never used before and with an expiry; the commit script removes the
expiry when it replaces the record.  What an interrupted upload leaves behind is thus never visible, and expires.
If a chunk disappears while it is being read, the reader starts again with the new record.
"""

from __future__ import annotations

import json
import secrets
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from typing import TypeGuard, cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import FENCE_LUA, as_adopted, current_launch, launch_key, raise_if_fenced
from laggard.kvstore.client.replicas import ReplicatedScript
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import (
    ConflictError,
    CorruptValueError,
    FencedError,
    KVStoreError,
    LargeTransactionError,
    NotACounterError,
    NotAListError,
    StateFullError,
    StateRewoundError,
)
from laggard.kvstore.values.codec import Encoded, decode
from laggard.kvstore.values.decoding import Buffer, Value

# Servers accept values of 512 MiB, but both ends are fastest with buffers that their allocators reuse, and with several
# in flight, so that one is sent while another is written to disk.
CHUNK_BYTES = 2 << 20
_BATCH_BYTES = 32 << 20
# The commit visits each chunk of a value in one step; a value that would have more gets larger ones.
_MOST_CHUNKS = 4096

# Up to this size a value is part of the commit; above, the script's copies would cost more than a round trip.
_INLINE_BYTES = 256 << 10
# In a transaction of more than this, values are part of the commit up to the other size only.
_MOST_INLINE_BYTES = 8 << 20
_LEAST_INLINE_BYTES = 8 << 10
# The server serves nobody else while it applies a transaction: a second or two for so many keys and items. What is
# deleted does not count: State can always be cleared.
MOST_THINGS = 200_000
# The server deletes an upload that is not committed within this time.
_UPLOAD_EXPIRY_S = 3600
_LIST_PAGE = 256  # items of a list, of up to 256 KiB each
# A process may be stopped for days between a commit whose answer is lost and its next attempt.
ACKNOWLEDGEMENT_EXPIRY_S = 7 * 86_400
_LONGEST_VERSION = 20  # a number
# Beyond this the server cannot count without rounding.
MAX_COUNT = 2**53 - 1
ABSENT = "0"
# The empty text is not a valid key. In a transaction's reads it stands for the set of keys.
KEY_SET = ""
_COMMIT_LUA = FENCE_LUA + files("laggard.kvstore.state").joinpath("commit.lua").read_text(encoding="utf-8")

_Operation = tuple[str, str, Sequence[Buffer | int]]
"""What a transaction does to one key: ``value``, ``list``, ``append``, ``increment`` or ``delete``, the key, and the
pieces as they are stored; the only one of an increment is its amount."""


@dataclass(slots=True)
class Write:
    """What a transaction does to one key: replace it by a value or a list, append to it, increment or delete it."""

    name: str
    pieces: list[tuple[bytes, Encoded]] = field(default_factory=list)
    by: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What the index holds for one key."""

    version: str
    body: memoryview

    @property
    def tag(self) -> bytes:
        """``v`` for a value, ``l`` for a list, ``n`` for a whole number that was incremented."""
        return bytes(self.body[:1])


class Gone(Exception):  # noqa: N818 - a signal between two functions, which no user sees
    """A chunk or list disappeared while it was read: the key was replaced, or is damaged."""


class Layout:
    """Reads and writes records, lists and chunks of one job."""

    def __init__(
        self, client: redis.Redis, endpoint: Endpoint, launch: int, *, retry: RetryPolicy, chunk_bytes: int
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._launch = launch
        self._call = retry.call
        self._chunk_bytes = chunk_bytes  # largest chunk
        self._prefix = endpoint.key("state", "")
        self._keys = [launch_key(endpoint), self._prefix + "index", self._prefix + "meta"]
        self._commit_script = ReplicatedScript(client, endpoint, _COMMIT_LUA)
        self._newest = 0  # commit that the server has acknowledged here
        self._acknowledged = threading.local()  # each thread's newest acknowledgement
        # Of those before it: longer than anybody retries a commit.
        self._former_expiry_s = 60 + 2 * retry.retry_for_s

    @property
    def launch(self) -> int:
        """The launch that every write carries."""
        return as_adopted(self._launch)

    @property
    def place(self) -> str:
        """Where State is, for messages."""
        return f"job {self._endpoint.job} at {self._endpoint.address}"

    def record(self, key: str) -> Record | None:
        """Return a key's record, or None if there is no such key."""
        if not is_key(key):
            return None
        stored = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "index", key)))
        if not stored:
            return None
        version, _, _ = stored[:_LONGEST_VERSION].partition(b" ")
        return Record(version.decode(errors="replace"), memoryview(stored)[len(version) + 1 :])

    def count(self) -> int:
        """Return the number of keys."""
        return self._call(lambda: self._client.hlen(self._prefix + "index"))

    def all_keys(self) -> list[str]:
        """Return all keys."""
        names = self._call(lambda: cast("list[bytes]", self._client.hkeys(self._prefix + "index")))
        return [key.decode(errors="replace") for key in names]

    def commits(self) -> int:
        """Return the number of commits so far, without those that are no work of the program's."""
        return self._counter("commits") - self._counter("upkeep")

    def key_set_version(self) -> int:
        """Return a number that changes whenever a key is added or deleted."""
        return self._counter("keys")

    def _counter(self, name: str) -> int:
        value = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "meta", name)))
        return int(value or 0)

    def read(self, key: str, record: Record) -> Value:
        """Read the value of a record."""
        try:
            return self._read(key, record)
        except ValueError as error:
            raise CorruptValueError(key, f"its record cannot be read: {error}") from error

    def _read(self, key: str, record: Record) -> Value:
        if record.tag == b"n":
            return int(record.body[1:])
        if record.tag != b"l":
            return self._read_piece(key, record.body)
        list_id, count = bytes(record.body[1:]).split()
        items: list[Value] = []
        for piece in self._list_pieces(self._prefix + "list:" + list_id.decode(), int(count)):
            content = self._read_piece(key, memoryview(piece))
            items.extend(content if piece.startswith(b"b") else [content])
        return items

    def _list_pieces(self, name: str, count: int) -> Iterator[bytes]:
        for start in range(0, count, _LIST_PAGE):
            end = min(start + _LIST_PAGE, count) - 1
            page = self._call(lambda: cast("list[bytes]", self._client.lrange(name, start, end)))  # noqa: B023
            if len(page) != end - start + 1:
                raise Gone("part of its list is missing")
            yield from page

    def _read_piece(self, key: str, piece: memoryview) -> Value:
        upload, n_chunks, content = _split_piece(key, piece)
        if n_chunks == 0:
            return decode(key, [content])
        return decode(key, self._chunks(key, upload, json.loads(bytes(content))))

    def _chunks(self, key: str, upload: str, manifest: list[tuple[int, int]]) -> Iterator[bytes]:
        for number, (nbytes, checksum) in enumerate(manifest):
            name = self._chunk_key(upload, number)
            data = self._call(lambda: cast("bytes | None", self._client.get(name)))  # noqa: B023
            if data is None:
                raise Gone(f"chunk {number} of {len(manifest)} is missing")
            if len(data) != nbytes or zlib.crc32(data) != checksum:
                raise CorruptValueError(key, f"chunk {number} of {len(manifest)} does not match its checksum")
            yield data

    def commit(self, reads: Mapping[str, str], writes: Mapping[str, Write], *, is_upkeep: bool = False) -> None:
        """Apply all writes if everything that was read still has the given version, else none.

        ``is_upkeep``: it is no work of the program's.
        """
        if not reads and not writes:
            return
        n_things = len(reads) + sum(max(1, len(write.pieces)) for write in writes.values() if write.name != "delete")
        if n_things > MOST_THINGS:
            raise LargeTransactionError(n_things, MOST_THINGS)
        nbytes = sum(encoded.nbytes for write in writes.values() for _, encoded in write.pieces)
        inline_bytes = _INLINE_BYTES if nbytes <= _MOST_INLINE_BYTES else _LEAST_INLINE_BYTES
        uploads: list[str] = []
        try:
            operations = [self._operation(key, write, inline_bytes, uploads) for key, write in writes.items()]
            self._apply(reads, operations, is_upkeep=is_upkeep)
        except (ConflictError, CorruptValueError, NotACounterError, NotAListError, StateFullError):
            with suppress(redis.RedisError, KVStoreError):  # they expire
                self._drop(uploads)
            raise

    def _apply(self, reads: Mapping[str, str], operations: Sequence[_Operation], *, is_upkeep: bool) -> None:
        transaction = self._fresh_id()
        expiries_ms = [int(1000 * expiry_s) for expiry_s in (ACKNOWLEDGEMENT_EXPIRY_S, self._former_expiry_s)]
        arguments: list[Buffer | str | int] = [
            self.launch,
            self._prefix,
            *expiries_ms,
            int(is_upkeep),
            self._newest,
            len(reads),
        ]
        for key, version in reads.items():
            arguments += [key, version]
        for n, (name, key, pieces) in enumerate(operations):
            arguments += [name, key, f"{transaction}.{n}", len(pieces), *pieces]
        # The same name in every retry, so that the script recognizes a transaction that it has already committed.
        acknowledgement = f"{self._prefix}ack:{transaction}"
        keys = [*self._keys, acknowledgement, getattr(self._acknowledged, "newest", acknowledgement)]
        reply = self._call(lambda: cast("list[bytes]", self._commit_script(keys=keys, args=arguments)))
        raise_if_fenced(reply, self.launch)
        if reply[0] == b"rewound":
            raise StateRewoundError(self._newest, int(reply[1]))
        if reply[0] != b"ok":
            raise _refusal(reply[0], reply[1].decode())
        self._newest = max(self._newest, int(reply[1]))
        if operations:
            self._acknowledged.newest = acknowledgement

    def _fresh_id(self) -> str:
        """Return an id that was never used before; it begins with the launch."""
        return f"{self.launch}.{secrets.token_hex(8)}"

    def _operation(self, key: str, write: Write, inline_bytes: int, uploads: list[str]) -> _Operation:
        if write.name == "increment":
            return write.name, key, (write.by,)
        return write.name, key, [self._piece(tag, encoded, inline_bytes, uploads) for tag, encoded in write.pieces]

    def _piece(self, tag: bytes, encoded: Encoded, inline_bytes: int, uploads: list[str]) -> bytes:
        if encoded.nbytes <= min(inline_bytes, self._chunk_bytes):
            return _join_piece(tag, "-", 0, encoded.nbytes, encoded.parts)
        upload = self._fresh_id()
        manifest = self._upload(upload, encoded, uploads)
        return _join_piece(tag, upload, len(manifest), encoded.nbytes, [json.dumps(manifest).encode()])

    def _upload(self, upload: str, encoded: Encoded, uploads: list[str]) -> list[tuple[int, int]]:
        current = self._call(lambda: current_launch(self._client, self._endpoint))
        if current != self.launch:  # the commit checks this too; here it saves a useless upload
            raise FencedError(self.launch, current)
        manifest: list[tuple[int, int]] = []
        chunk_bytes = max(self._chunk_bytes, encoded.nbytes // _MOST_CHUNKS)
        chunks = encoded.chunks(chunk_bytes)
        while batch := list(islice(chunks, max(1, _BATCH_BYTES // chunk_bytes))):
            names = [self._chunk_key(upload, len(manifest) + n) for n in range(len(batch))]
            uploads += names
            self._call(lambda: self._send(names, batch))  # noqa: B023
            manifest += [(len(chunk), zlib.crc32(chunk)) for chunk in batch]
        return manifest

    def _send(self, names: Sequence[str], batch: Sequence[Buffer]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for name, chunk in zip(names, batch, strict=True):
                pipe.set(name, chunk, ex=_UPLOAD_EXPIRY_S)
            pipe.execute()

    def _drop(self, names: list[str]) -> None:
        for start in range(0, len(names), _MOST_CHUNKS):
            self._call(lambda: self._client.unlink(*names[start : start + _MOST_CHUNKS]))  # noqa: B023

    def _chunk_key(self, upload: str, number: int) -> str:
        return f"{self._prefix}chunk:{upload}:{number}"


def _refusal(kind: bytes, detail: str) -> Exception:
    match kind:
        case b"conflict":
            return ConflictError(repr(detail) if detail else "the set of keys")
        case b"notalist":
            return NotAListError(detail)
        case b"notacounter":
            return NotACounterError(detail)
    return CorruptValueError(detail, "its upload is incomplete")


def _join_piece(tag: bytes, upload: str, chunks: int, nbytes: int, content: Sequence[Buffer]) -> bytes:
    checksum = 0
    for part in content:
        checksum = zlib.crc32(part, checksum)
    return b"".join([b"%s%s %d %d %d\n" % (tag, upload.encode(), chunks, nbytes, checksum), *content])


def _split_piece(key: str, piece: memoryview) -> tuple[str, int, memoryview]:
    """Return the upload that holds a piece's chunks, how many these are, and the piece's content."""
    head = bytes(piece[:128]).partition(b"\n")[0]
    content = piece[len(head) + 1 :]
    upload, chunks, _, checksum = head[1:].split()
    if zlib.crc32(content) != int(checksum):
        raise CorruptValueError(key, "it does not match its checksum")
    return upload.decode(), int(chunks), content


def is_key(key: object) -> TypeGuard[str]:
    """Return whether this is a valid key of State."""
    try:
        return isinstance(key, str) and bool(key.encode())
    except UnicodeEncodeError:
        return False


def checked_key(key: str) -> str:
    """Return the key, or raise ValueError if it is not valid."""
    if not is_key(key):
        raise ValueError(f"{key!r} is not a valid key of State; use non-empty text")
    return key
