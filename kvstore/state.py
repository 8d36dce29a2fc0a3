r"""The program's state: a mapping that survives crashes and relaunches.

How it lies in the server, all keys under ``laggard:{job}:state``:

``index``           hash: user's key -> record
``meta``            hash: ``commits`` (number of commits so far), ``keys`` (changes whenever a key comes or goes)
``list:ID``         list: the pieces of a list;  ``list:ID:big``: which of them have chunks
``chunk:ID:N``      one chunk of a large piece
``ack:TRANSACTION`` for a while: this transaction is committed

A record is ``VERSION PIECE`` or ``VERSION lID COUNT\n``, where VERSION is the number of the commit that wrote it.
A piece is ``TAG ID CHUNKS BYTES CRC\n`` and its content: the value itself, or for a large one the sizes and checksums
of its chunks, ``\n``, and what comes before them.
Tags: ``v`` the one value of a key, ``i`` an item of a list, ``b`` several items of a list.

Chunks are written first, under an id never used before and with an expiry; the commit script takes the expiry off
as it flips the record.  What an interrupted upload leaves behind is thus never seen and ends by itself.
A reader that loses a chunk under its hands reads the new record instead.
"""

from __future__ import annotations

import json
import random
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import chain, islice
from typing import Self, TypeGuard, TypeVar, cast

import redis

from kvstore.codec import Buffer, Encoded, Value, decode, encode
from kvstore.endpoint import Endpoint
from kvstore.errors import (
    ConflictError,
    CorruptValueError,
    FencedError,
    NotAListError,
    StateFullError,
    StateUnavailableError,
)
from kvstore.fence import FENCE_LUA, current_launch, launch_key, raise_if_fenced
from kvstore.session import current_session

__all__ = ["State", "Transaction"]

T = TypeVar("T")

# Servers take 512 MiB in one value, but both ends are fastest with buffers that their allocators keep for the next one,
# and with several under way, so that one is sent while another is written to disk.
_CHUNK_BYTES = 2 << 20
_BATCH_BYTES = 32 << 20

# Up to this size a value travels inside the commit; above, the script's copies would cost more than a round trip.
_INLINE_BYTES = 256 << 10
# An upload has this long to be committed before the server drops it.
_UPLOAD_EXPIRY_S = 3600
_LIST_PAGE = 256
_PAUSE_S = (0.02, 0.5)
_ABSENT = 0
# The empty text is no valid key, so in a transaction's reads it stands for the set of keys.
_KEY_SET = ""

_COMMIT_LUA = FENCE_LUA + files("kvstore").joinpath("commit.lua").read_text(encoding="utf-8")


@dataclass(slots=True)
class _Write:
    """What a transaction does to one key: replace it by a value or a list, append to it, or delete it."""

    name: str
    pieces: list[tuple[bytes, Encoded]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Record:
    """What the index holds for one key."""

    version: int
    body: memoryview

    @property
    def tag(self) -> bytes:
        return bytes(self.body[:1])


class _Gone(Exception):  # noqa: N818 - a signal between two functions, not an error of the user's
    """A chunk or list vanished while it was read: the key has been replaced or is damaged."""


class State(MutableMapping[str, Value]):
    """A mapping in the state server, with atomic transactions and lists that grow.

    Values are NumPy and CuPy arrays (any dtype without Python objects), NumPy scalars, ``int``, ``float``, ``bool``,
    ``None``, ``str``, ``bytes``, and lists and dicts (text keys) of these.  Never a pickle; a tuple is refused, since
    it would come back as a list.  A CuPy array comes back on the current GPU, or as a NumPy array where there is none.
    Keys are any non-empty text.

    A value that was read is a copy: **changing it changes nothing in State** until it is assigned again.
    Every single assignment, deletion and `append` is a transaction of its own; ``state["n"] += 1`` is two steps, for
    which `update_with` or `transaction` is the safe form.  A replaced value is kept until its successor is complete,
    so the server needs room for both.

    Parameters
    ----------
    client : redis.Redis
        From `Endpoint.connect`.
    endpoint : Endpoint
        The job that the state belongs to.
    launch : int
        The caller's launch, which every write carries.
    patience_s : float
        How long a call waits for a server that does not answer, for example while it is restarted, in seconds.
        A commit that is repeated after a lost answer is applied once.
    chunk_bytes : int
        Larger values are cut into chunks of at most this size.

    Raises
    ------
    FencedError
        From every write, once a later launch has begun.
    StateUnavailableError
        From every call, if the server does not answer within `patience_s`.
    StateFullError
        From every write, if the server has no room left; State is as of the last commit.
    """

    def __init__(
        self,
        client: redis.Redis,
        endpoint: Endpoint,
        launch: int,
        *,
        patience_s: float = 30.0,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._launch = launch
        self._patience_s = patience_s
        self._chunk_bytes = chunk_bytes
        self._prefix = endpoint.key("state", "")
        self._commit_script = client.register_script(_COMMIT_LUA)
        self._leftovers_collected = False

    @property
    def launch(self) -> int:
        """The launch that every write of this object carries."""
        return self._launch

    @classmethod
    def current(cls) -> Self:
        """Return the state of the job that this process belongs to.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        session = current_session()
        return cls(session.client, session.endpoint, session.environment.launch)

    def __getitem__(self, key: str) -> Value:
        record = self._record(key)
        while record is not None:
            try:
                return self._read(key, record)
            except _Gone as gone:
                newer = self._record(key)
                if newer is not None and newer.version == record.version:
                    raise CorruptValueError(key, str(gone)) from None
                record = newer
        raise KeyError(key)

    def __setitem__(self, key: str, value: Value) -> None:
        self._commit({}, {_checked(key): _replacement(key, value)})

    def __delitem__(self, key: str) -> None:
        self.update_with(lambda t: t.__delitem__(key))

    def __contains__(self, key: object) -> bool:
        return _is_key(key) and self._call(lambda: bool(self._client.hexists(self._prefix + "index", key)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return self._call(lambda: self._client.hlen(self._prefix + "index"))

    def append(self, key: str, item: Value) -> None:
        """Add an item to a list without reading it; a missing list is made.

        Raises
        ------
        NotAListError
            If the key holds something else.
        """
        self._commit({}, {_checked(key): _Write("append", [(b"i", encode(key, item))])})

    def discard(self, *keys: str) -> None:
        """Remove keys, at once and whether they are there or not."""
        self._commit({}, {_checked(key): _Write("delete") for key in keys})

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit everything that is done to ``t`` in ``with state.transaction() as t``, or nothing.

        An error inside the block, or one at its end, leaves State as it was.

        Raises
        ------
        ConflictError
            At the end of the block, if another transaction changed what this one had read.
        """
        t = Transaction(self)
        try:
            yield t
        finally:
            t._open = False
        self._commit(t._reads(), t._writes)

    def update_with(self, change: Callable[[Transaction], T], *, attempts: int = 100) -> T:
        """Run ``change(t)`` in a transaction, again and again while others get in between.

        Parameters
        ----------
        change : callable
            Takes a `Transaction`; it may run several times, so it should do nothing else.
        attempts : int
            How often to try.

        Returns
        -------
        object
            What `change` returned in the run that was committed.

        Raises
        ------
        ConflictError
            If every attempt met a clash.
        """
        for attempt in range(1, attempts + 1):
            try:
                with self.transaction() as t:
                    return change(t)
            except ConflictError:
                if attempt == attempts:
                    raise
                # Those that clashed should not meet again at the next step.
                time.sleep(random.uniform(0, min(0.001 * attempt, 0.05)))
        raise ValueError(f"attempts is {attempts}; it must be at least 1")

    def commits(self) -> int:
        """Count the transactions committed so far, by every launch of the job."""
        value = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "meta", "commits")))
        return int(value or 0)

    # The mapping's compound operations, each as one transaction.

    def pop(self, key: str, *default: Value) -> Value:
        """Remove a key and return its value, or the default if there is none."""
        return self.update_with(lambda t: t.pop(key, *default))

    def popitem(self) -> tuple[str, Value]:
        """Remove some key and return it with its value."""
        return self.update_with(lambda t: t.popitem())

    def setdefault(self, key: str, default: Value = None) -> Value:
        """Return the value of a key, which is set to the default if it is missing."""
        return self.update_with(lambda t: t.setdefault(key, default))

    def clear(self) -> None:
        """Remove all keys."""
        self.update_with(lambda t: t.clear())

    def update(  # type: ignore[override]  # one signature in place of five overloads
        self, other: Mapping[str, Value] | Iterable[tuple[str, Value]] = (), /, **more: Value
    ) -> None:
        """Set several keys at once."""
        values = {**dict(other), **more}
        self._commit({}, {_checked(key): _replacement(key, value) for key, value in values.items()})

    # Reading

    def _record(self, key: str) -> _Record | None:
        if not _is_key(key):
            return None
        stored = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "index", key)))
        if stored is None:
            return None
        version, _, _ = stored[:24].partition(b" ")
        return _Record(int(version), memoryview(stored)[len(version) + 1 :])

    def _keys(self) -> list[str]:
        found = self._call(lambda: cast("list[bytes]", self._client.hkeys(self._prefix + "index")))
        return [key.decode() for key in found]

    def _key_set_version(self) -> int:
        value = self._call(lambda: cast("bytes | None", self._client.hget(self._prefix + "meta", "keys")))
        return int(value or _ABSENT)

    def _read(self, key: str, record: _Record) -> Value:
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
                raise _Gone("a part of its list is missing")
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
                raise _Gone(f"chunk {number} of {len(manifest)} is missing")
            if len(data) != nbytes or zlib.crc32(data) != checksum:
                raise CorruptValueError(key, f"chunk {number} of {len(manifest)} does not match its checksum")
            yield data

    # Writing

    def _commit(self, reads: Mapping[str, int], writes: Mapping[str, _Write]) -> None:
        if not reads and not writes:
            return
        uploads: list[str] = []
        arguments: list[Buffer | str | int] = [self._launch, self._acknowledgement_ms(), self._prefix, len(reads)]
        for key, version in reads.items():
            arguments += [key, version]
        for key, write in writes.items():
            arguments += [write.name, key, self._fresh_id(), len(write.pieces)]
            arguments += [self._piece(tag, encoded, uploads) for tag, encoded in write.pieces]
        # The same name in every repetition: the script knows a transaction that it has committed already.
        keys = [
            launch_key(self._endpoint),
            self._prefix + "index",
            self._prefix + "meta",
            self._prefix + "ack:" + _id(),
        ]
        reply = self._call(lambda: cast("list[bytes]", self._commit_script(keys=keys, args=arguments)))
        raise_if_fenced(reply, self._launch)
        if reply[0] != b"ok":
            self._drop(uploads)
            raise _refusal(reply[0], reply[1].decode())

    def _piece(self, tag: bytes, encoded: Encoded, uploads: list[str]) -> bytes:
        header, rest = encoded.split(_INLINE_BYTES)
        if encoded.nbytes <= _INLINE_BYTES and rest.nbytes <= self._chunk_bytes:
            return _join_piece(tag, "-", 0, encoded.nbytes, encoded.parts)
        upload = self._fresh_id()
        manifest = self._upload(upload, rest, uploads)
        return _join_piece(tag, upload, len(manifest), rest.nbytes, (json.dumps(manifest).encode(), b"\n", header))

    def _upload(self, upload: str, encoded: Encoded, uploads: list[str]) -> list[tuple[int, int]]:
        current = self._call(lambda: current_launch(self._client, self._endpoint))
        if current != self._launch:  # the commit checks this for good; here it only spares a vain upload
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
        """Drop what earlier launches uploaded and did not commit: only such chunks have an expiry."""
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

    def _acknowledgement_ms(self) -> int:
        return int(1000 * (60 + 2 * self._patience_s))

    def _call(self, operation: Callable[[], T]) -> T:
        """Run an operation that may be repeated, for as long as patience lasts while the server does not answer."""
        deadline = time.monotonic() + self._patience_s
        pause_s, longest_s = _PAUSE_S
        while True:
            try:
                return operation()
            except redis.AuthenticationError as error:
                raise self._unavailable(error) from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if time.monotonic() + pause_s > deadline:
                    raise self._unavailable(error) from error
            except redis.ResponseError as error:
                if isinstance(error, redis.OutOfMemoryError) or str(error).startswith("MISCONF"):
                    raise StateFullError(self._endpoint.address, str(error)) from error
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _unavailable(self, error: redis.RedisError) -> StateUnavailableError:
        return StateUnavailableError(self._endpoint.host, self._endpoint.port, str(error))


class Transaction(MutableMapping[str, Value]):
    """Reads and writes that are committed together; made by `State.transaction`.

    Reads see State and this transaction's own writes.  What was read must still be unchanged at the commit.
    Values are taken as they are at the moment of the assignment or `append`.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._records: dict[str, _Record | None] = {}
        self._key_set_version: int | None = None
        self._writes: dict[str, _Write] = {}
        self._open = True

    def __getitem__(self, key: str) -> Value:
        write = self._writes.get(key)
        if write is None:
            return self._stored(key)
        if write.name == "delete":
            raise KeyError(key)
        if write.name == "value":
            return decode(key, write.pieces[0][1].parts)
        items: list[Value] = []
        if write.name == "append" and self._record(key) is not None:
            items += self._stored(key)
        for tag, encoded in write.pieces:
            content = decode(key, encoded.parts)
            items.extend(content if tag == b"b" else [content])
        return items

    def __setitem__(self, key: str, value: Value) -> None:
        write = _replacement(_checked(key), value)
        self._write(key, _Write(write.name, [(tag, encoded.snapshot()) for tag, encoded in write.pieces]))

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._write(key, _Write("delete"))

    def __contains__(self, key: object) -> bool:
        if not _is_key(key):
            return False
        write = self._writes.get(key)
        return self._record(key) is not None if write is None else write.name != "delete"

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_keys())

    def __len__(self) -> int:
        return len(self._all_keys())

    def append(self, key: str, item: Value) -> None:
        """Add an item to a list without reading it; a missing list is made.

        Raises
        ------
        NotAListError
            If the key holds something else: at once if this transaction put it there, else at the commit.
        """
        piece = (b"i", encode(_checked(key), item).snapshot())
        write = self._writes.get(key)
        if write is not None and write.name == "value":
            raise NotAListError(key)
        if write is None:
            self._write(key, _Write("append", [piece]))
        elif write.name == "delete":
            self._write(key, _Write("list", [piece]))
        else:
            self._write(key, _Write(write.name, [*write.pieces, piece]))

    def _write(self, key: str, write: _Write) -> None:
        if not self._open:
            raise RuntimeError("this transaction is over, begin another one with state.transaction()")
        self._writes[key] = write

    def _record(self, key: str) -> _Record | None:
        if key not in self._records:
            self._records[key] = self._state._record(key)
        return self._records[key]

    def _stored(self, key: str) -> Value:
        record = self._record(key) if _is_key(key) else None
        if record is None:
            raise KeyError(key)
        try:
            return self._state._read(key, record)
        except _Gone as gone:
            newer = self._state._record(key)
            if newer is not None and newer.version == record.version:
                raise CorruptValueError(key, str(gone)) from None
            raise ConflictError(repr(key)) from None

    def _all_keys(self) -> list[str]:
        if self._key_set_version is None:
            self._key_set_version = self._state._key_set_version()  # before the keys: a change in between is a clash
        stored = [key for key in self._state._keys() if key not in self._writes]
        return stored + [key for key, write in self._writes.items() if write.name != "delete"]

    def _reads(self) -> dict[str, int]:
        """Version of everything that was read."""
        reads = {key: _ABSENT if record is None else record.version for key, record in self._records.items()}
        if self._key_set_version is not None:
            reads[_KEY_SET] = self._key_set_version
        return reads


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


def _replacement(key: str, value: Value) -> _Write:
    if type(value) is list:
        return _Write("list", [(b"b", encode(key, value))] if value else [])
    return _Write("value", [(b"v", encode(key, value))])


def _is_key(key: object) -> TypeGuard[str]:
    try:
        return isinstance(key, str) and bool(key.encode())
    except UnicodeEncodeError:
        return False


def _checked(key: str) -> str:
    if not _is_key(key):
        raise ValueError(f"{key!r} is no key of State; use non-empty text")
    return key


def _refusal(kind: bytes, key: str) -> Exception:
    match kind:
        case b"conflict":
            return ConflictError(repr(key) if key else "the set of keys")
        case b"notalist":
            return NotAListError(key)
    return CorruptValueError(key, "its upload did not arrive whole")


def _id() -> str:
    return secrets.token_hex(8)
