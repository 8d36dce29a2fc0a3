r"""How State is stored in the server; all keys are under ``laggard:{job}:state``.

``index``           hash: user's key -> record
``meta``            hash: ``commits`` (number of commits so far), ``keys`` (changes when a key is added or deleted)
``list:ID``         list: the pieces of a list;  ``list:ID:big``: which of them have chunks
``chunk:ID:N``      one chunk of a large piece
``ack:TRANSACTION`` this transaction is committed; expires, for a thread's newest one after a week

A record is ``VERSION PIECE``, ``VERSION lID COUNT\n`` for a list or ``VERSION nNUMBER\n`` for an integer that was
incremented, where VERSION is the number of the commit that wrote it.
A piece is ``TAG ID CHUNKS BYTES CRC\n`` and its content: the value itself, or for a large one the sizes and checksums
of its chunks, ``\n``, and the value's header.
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
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import chain, islice
from typing import TypeGuard, cast

import redis

from laggard.kvstore.codec import Buffer, Encoded, Value, decode
from laggard.kvstore.connection import Endpoint
from laggard.kvstore.errors import ConflictError, CorruptValueError, FencedError, NotACounterError, NotAListError
from laggard.kvstore.fence import FENCE_LUA, current_launch, launch_key, raise_if_fenced
from laggard.kvstore.retry import RetryPolicy

__all__ = ["ABSENT", "CHUNK_BYTES", "KEY_SET", "Gone", "Layout", "Record", "Write", "checked_key", "is_key"]

# Servers accept values of 512 MiB, but both ends are fastest with buffers that their allocators reuse, and with several
# in flight, so that one is sent while another is written to disk.
CHUNK_BYTES = 2 << 20
_BATCH_BYTES = 32 << 20

# Up to this size a value is part of the commit; above, the script's copies would cost more than a round trip.
_INLINE_BYTES = 256 << 10
# The server deletes an upload that is not committed within this time.
_UPLOAD_EXPIRY_S = 3600
# A process may be stopped for days between a commit whose answer is lost and its next attempt.
_ACKNOWLEDGEMENT_EXPIRY_S = 7 * 86_400
_LIST_PAGE = 256
ABSENT = 0
# The empty text is not a valid key, so in a transaction's reads it stands for the set of keys.
KEY_SET = ""

_COMMIT_LUA = FENCE_LUA + files("laggard.kvstore").joinpath("commit.lua").read_text(encoding="utf-8")


@dataclass(slots=True)
class Write:
    """What a transaction does to one key: replace it by a value or a list, append to it, increment or delete it."""

    name: str
    pieces: list[tuple[bytes, Encoded]] = field(default_factory=list)
    by: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What the index holds for one key."""

    version: int
    body: memoryview

    @property
    def tag(self) -> bytes:
        """``v`` for a value, ``l`` for a list, ``n`` for a whole number that was incremented."""
        return bytes(self.body[:1])


class Gone(Exception):  # noqa: N818 - a signal between two functions, which no user sees
    """A chunk or list disappeared while it was read: the key was replaced, or is damaged."""


class Layout:
    """Reads and writes records, lists and chunks of one job.

    Parameters
    ----------
    client, endpoint, launch
        As for `State`.
    retry : RetryPolicy
        For operations that get no answer.
    chunk_bytes : int
        Largest chunk.
    """

    def __init__(
        self, client: redis.Redis, endpoint: Endpoint, launch: int, *, retry: RetryPolicy, chunk_bytes: int
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._launch = launch
        self._retry = retry
        self._call = retry.call
        self._chunk_bytes = chunk_bytes
        self._prefix = endpoint.key("state", "")
        self._commit_script = client.register_script(_COMMIT_LUA)
        self._leftovers_collected = False
        self._acknowledged = threading.local()  # each thread's newest acknowledgement
        # Of those before it: longer than anybody retries a commit.
        self._former_expiry_s = 60 + 2 * retry.retry_for_s

    def record(self, key: str) -> Record | None:
        """Return a key's record, or None if there is no such key."""
        if not is_key(key):
            return None
        stored = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "index", key)))
        if stored is None:
            return None
        version, _, _ = stored[:24].partition(b" ")
        return Record(int(version), memoryview(stored)[len(version) + 1 :])

    def has(self, key: str) -> bool:
        """Return whether a key exists."""
        return self._call(lambda: bool(self._client.hexists(self._prefix + "index", key)))

    def count(self) -> int:
        """Return the number of keys."""
        return self._call(lambda: self._client.hlen(self._prefix + "index"))

    def commits(self) -> int:
        """Return the number of commits so far."""
        return self._counter("commits")

    def all_keys(self) -> list[str]:
        """Return all keys."""
        found = self._call(lambda: cast("list[bytes]", self._client.hkeys(self._prefix + "index")))
        return [key.decode() for key in found]

    def key_set_version(self) -> int:
        """Return a number that changes whenever a key is added or deleted."""
        return self._counter("keys")

    def _counter(self, name: str) -> int:
        value = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "meta", name)))
        return int(value or 0)

    def read(self, key: str, record: Record) -> Value:
        """Read the value of a record.

        Raises
        ------
        Gone
            If part of it no longer exists: the key was replaced, or is damaged if its record is still the same.
        """
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
        head, content = _split_piece(key, piece)
        if head.chunks == 0:
            return decode(key, [content])
        manifest, _, header = bytes(content).partition(b"\n")
        return decode(key, chain([header], self._chunks(key, head.upload, json.loads(manifest))))

    def _chunks(self, key: str, upload: str, manifest: list[tuple[int, int]]) -> Iterator[bytes]:
        for number, (nbytes, checksum) in enumerate(manifest):
            name = self._chunk_key(upload, number)
            data = self._call(lambda: cast("bytes | None", self._client.get(name)))  # noqa: B023
            if data is None:
                raise Gone(f"chunk {number} of {len(manifest)} is missing")
            if len(data) != nbytes or zlib.crc32(data) != checksum:
                raise CorruptValueError(key, f"chunk {number} of {len(manifest)} does not match its checksum")
            yield data

    def commit(self, reads: Mapping[str, int], writes: Mapping[str, Write]) -> None:
        """Apply all writes if everything that was read still has the given version, else none."""
        if not reads and not writes:
            return
        uploads: list[str] = []
        expiries_ms = [int(1000 * expiry_s) for expiry_s in (_ACKNOWLEDGEMENT_EXPIRY_S, self._former_expiry_s)]
        arguments: list[Buffer | str | int] = [self._launch, *expiries_ms, self._prefix, len(reads)]
        for key, version in reads.items():
            arguments += [key, version]
        for key, write in writes.items():
            pieces: list[Buffer | int] = [self._piece(tag, encoded, uploads) for tag, encoded in write.pieces]
            if write.name == "increment":
                pieces = [write.by]
            arguments += [write.name, key, self._fresh_id(), len(pieces), *pieces]
        # The same name in every retry, so that the script recognizes a transaction that it has already committed.
        acknowledgement = f"{self._prefix}ack:{_id()}"
        keys = [
            launch_key(self._endpoint),
            self._prefix + "index",
            self._prefix + "meta",
            acknowledgement,
            getattr(self._acknowledged, "newest", acknowledgement),
        ]
        reply = self._call(lambda: cast("list[bytes]", self._commit_script(keys=keys, args=arguments)))
        raise_if_fenced(reply, self._launch)
        if reply[0] != b"ok":
            self._drop(uploads)
            raise _refusal(reply[0], reply[1].decode())
        if writes:
            self._acknowledged.newest = acknowledgement

    def _piece(self, tag: bytes, encoded: Encoded, uploads: list[str]) -> bytes:
        header, rest = encoded.split(_INLINE_BYTES)
        if encoded.nbytes <= _INLINE_BYTES and rest.nbytes <= self._chunk_bytes:
            return _join_piece(tag, "-", 0, encoded.nbytes, encoded.parts)
        upload = self._fresh_id()
        manifest = self._upload(upload, rest, uploads)
        return _join_piece(tag, upload, len(manifest), rest.nbytes, (json.dumps(manifest).encode(), b"\n", header))

    def _upload(self, upload: str, encoded: Encoded, uploads: list[str]) -> list[tuple[int, int]]:
        current = self._call(lambda: current_launch(self._client, self._endpoint))
        if current != self._launch:  # the commit checks this too; here it saves a useless upload
            raise FencedError(self._launch, current)
        self._collect_leftovers()
        manifest: list[tuple[int, int]] = []
        chunks = encoded.chunks(self._chunk_bytes)
        while batch := list(islice(chunks, max(1, _BATCH_BYTES // self._chunk_bytes))):
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

    def _collect_leftovers(self) -> None:
        """Delete what earlier launches uploaded and did not commit: only such chunks have an expiry."""
        if self._leftovers_collected:
            return
        self._leftovers_collected = True
        for name in self._call(lambda: list(self._client.scan_iter(match=self._prefix + "chunk:*", count=1000))):
            launch = int(name.decode().removeprefix(self._prefix + "chunk:").partition(".")[0])
            if launch < self._launch and self._call(lambda: self._client.ttl(name)) >= 0:  # noqa: B023
                self._drop([name.decode()])

    def _drop(self, names: list[str]) -> None:
        if names:
            self._call(lambda: self._client.unlink(*names))

    def _chunk_key(self, upload: str, number: int) -> str:
        return f"{self._prefix}chunk:{upload}:{number}"

    def _fresh_id(self) -> str:
        return f"{self._launch}.{_id()}"


@dataclass(frozen=True, slots=True)
class _PieceHead:
    upload: str
    chunks: int


def _join_piece(tag: bytes, upload: str, chunks: int, nbytes: int, content: Sequence[Buffer]) -> bytes:
    checksum = 0
    for part in content:
        checksum = zlib.crc32(part, checksum)
    return b"".join([b"%s%s %d %d %d\n" % (tag, upload.encode(), chunks, nbytes, checksum), *content])


def _split_piece(key: str, piece: memoryview) -> tuple[_PieceHead, memoryview]:
    head = bytes(piece[:128]).partition(b"\n")[0]
    content = piece[len(head) + 1 :]
    upload, chunks, _, checksum = head[1:].split()
    if zlib.crc32(content) != int(checksum):
        raise CorruptValueError(key, "it does not match its checksum")
    return _PieceHead(upload.decode(), int(chunks)), content


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


def _refusal(kind: bytes, key: str) -> Exception:
    match kind:
        case b"conflict":
            return ConflictError(repr(key) if key else "the set of keys")
        case b"notalist":
            return NotAListError(key)
        case b"notacounter":
            return NotACounterError(key)
    return CorruptValueError(key, "its upload is incomplete")


def _id() -> str:
    return secrets.token_hex(8)
