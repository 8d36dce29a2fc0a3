"""The program's state: a mapping that survives crashes and relaunches."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Self, TypeVar, cast

import redis

from laggard.kvstore.client.connection import Endpoint, current_session
from laggard.kvstore.client.retry import RETRY_FOR_S, RetryPolicy
from laggard.kvstore.errors import (
    ClosedTransactionError,
    ConflictError,
    CorruptValueError,
    NotACounterError,
    NotAListError,
    OpenTransactionError,
)
from laggard.kvstore.state.layout import (
    ABSENT,
    CHUNK_BYTES,
    KEY_SET,
    MAX_COUNT,
    Gone,
    Layout,
    Record,
    Write,
    checked_key,
    is_key,
)
from laggard.kvstore.state.local_state import FileLayout, is_outside_jobs, local_state
from laggard.kvstore.values.codec import decode, encode
from laggard.kvstore.values.decoding import Value

T = TypeVar("T")
S = TypeVar("S", bound="State")

# A reader of a large value starts again if the value is replaced meanwhile; nobody replaces one this often.
_READ_ATTEMPTS = 100

# The objects whose transactions are open here.
_in_transaction: ContextVar[tuple[State, ...]] = ContextVar("_in_transaction", default=())


class State(MutableMapping[str, Value]):
    """A mapping in the state server, with atomic transactions and lists that can be appended to.

    Values are NumPy and CuPy arrays (any dtype without Python objects), PyTorch tensors (any dtype but quantized ones),
    NumPy scalars, ``int``, ``float``, ``bool``, ``None``, ``str``, ``bytes``, and lists, tuples and dicts of these
    (``OrderedDict``, ``Counter`` and ``torch.Size`` too; the keys of a dict are text or whole numbers).  So the
    ``state_dict()`` of a module, an optimizer or a scheduler is a value.  Nothing is pickled.  A CuPy array comes back
    on the current GPU, or as a NumPy array if there is none; a tensor comes back on the CPU, in memory of its own and
    without its graph, in a process that has imported PyTorch.  Keys are any non-empty text.

    A value that was read is a copy: **changing it changes nothing in State** until it is assigned again.
    Every assignment, deletion, `append` and `increment` is a transaction of its own.  ``state["n"] += 1`` is two of
    them: use `increment`, or `update_with` or `transaction` for other changes that depend on a value.  A replaced value
    is kept until its successor is complete, so the server needs room for both.  No other thread may change an array
    while it is being assigned.

    A transaction may have any size, and up to 200,000 keys and items besides those that it deletes: the server serves
    nobody else while it applies one, a second or two for so many.

    Parameters
    ----------
    client : redis.Redis
        From `Endpoint.connect`.
    endpoint : Endpoint
        The job that the state belongs to.
    launch : int
        The caller's launch, which every write carries.
    retry_for_s : float
        How long a call retries while the server does not answer, for example because it is being restarted, in seconds.
        Time in which the server loads its log does not count.
        A commit that is retried after a lost reply is applied once.
    chunk_bytes : int
        Larger values are split into chunks of at most this size.

    Raises
    ------
    FencedError
        From every write, once a later launch has begun.
    StateUnavailableError
        From every call, if the server does not answer within `retry_for_s`.
    LargeTransactionError
        From a write of more keys and items.
    StateFullError
        From every write, if the server has no room left on disk or in memory (deletions need no memory); State stays as
        of the last commit.
    """

    def __init__(
        self,
        client: redis.Redis,
        endpoint: Endpoint,
        launch: int,
        *,
        retry_for_s: float = RETRY_FOR_S,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._layout: Layout | FileLayout = Layout(
            client, endpoint, launch, retry=RetryPolicy(endpoint, retry_for_s), chunk_bytes=chunk_bytes
        )

    def __repr__(self) -> str:
        return f"<State of {self._layout.place}, launch {self.launch}>"

    @property
    def launch(self) -> int:
        """The launch that every write of this object carries."""
        return self._layout.launch

    @property
    def file(self) -> Path | None:
        """The file that it is, in a program that runs without a job."""
        return self._layout.path if isinstance(self._layout, FileLayout) else None

    @property
    def command(self) -> str | None:
        """What the runs of a program without a job have in common that one command, such as torchrun, has started."""
        return self._layout.command() if isinstance(self._layout, FileLayout) else None

    @classmethod
    def current(cls) -> Self:
        """Return the state of the job that this process belongs to, the same object each time.

        In a program that was started without laggard it is a file, for ``train.py`` ``train.laggard-state.db`` in the
        current folder, or the one that ``LAGGARD_LOCAL_STATE`` names, and each run of the program is a launch.

        Raises
        ------
        NotInJobError
            If the program was started without laggard, and on several machines.
        LocalStateError
            If the file cannot be used.
        """
        if is_outside_jobs():
            return cast("Self", _of_file(cls))
        return cast("Self", _of_job(cls))

    def __getitem__(self, key: str) -> Value:
        record = self._layout.record(key)
        for _ in range(_READ_ATTEMPTS):
            if record is None:
                raise KeyError(key)
            try:
                return self._layout.read(key, record)
            except Gone as gone:
                newer = self._layout.record(key)
                if newer is not None and newer.version == record.version:
                    raise CorruptValueError(key, str(gone)) from None
                record = newer
        raise ConflictError(repr(key))

    def __setitem__(self, key: str, value: Value) -> None:
        self._commit(f"state[{key!r}] = ...", {checked_key(key): _replacement(key, value)})

    def __delitem__(self, key: str) -> None:
        self.update_with(lambda t: t.__delitem__(key))

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self._layout.record(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.all_keys())

    def __len__(self) -> int:
        return self._layout.count()

    def append(self, key: str, item: Value) -> None:
        """Append an item to a list without reading the list; a missing list is created.

        Raises
        ------
        NotAListError
            If the key holds something else.
        """
        self._commit(f"state.append({key!r}, ...)", {checked_key(key): Write("append", [(b"i", encode(key, item))])})

    def increment(self, key: str, by: int = 1) -> None:
        """Add to an integer without reading it, so that it never conflicts; a missing one counts as 0.

        Raises
        ------
        NotACounterError
            If the key holds something else, or the integer or the sum has a magnitude of 2**53 or more.
        """
        self._commit(f"state.increment({key!r})", {checked_key(key): Write("increment", by=_amount(key, by))})

    def discard(self, *keys: str) -> None:
        """Delete keys in one transaction; those that do not exist are ignored."""
        self._commit("state.discard(...)", {checked_key(key): Write("delete") for key in keys})

    def _commit(self, operation: str, writes: Mapping[str, Write]) -> None:
        """Commit writes that read nothing."""
        self._refuse_in_transaction(operation)
        self._layout.commit({}, writes)

    def _refuse_in_transaction(self, operation: str) -> None:
        if any(each is self for each in _in_transaction.get()):
            raise OpenTransactionError(operation)

    @contextmanager
    def transaction(self, *, is_upkeep: bool = False) -> Iterator[Transaction]:
        """Open a transaction: ``with state.transaction() as t`` commits everything that is done to ``t``, or nothing.

        An error inside the block or at its end leaves State as it was.

        Parameters
        ----------
        is_upkeep : bool
            Whether it is no work of the program's, so that `commits` does not count it.

        Raises
        ------
        ConflictError
            At the end of the block, if another transaction changed what this one had read.
        OpenTransactionError
            Inside the block, from every write to State that does not go through ``t``.
        """
        self._refuse_in_transaction("state.transaction()")
        t = Transaction(self._layout)
        before = _in_transaction.get()
        _in_transaction.set((*before, self))
        try:
            yield t
        finally:
            _in_transaction.set(before)
            t._open = False
        self._layout.commit(t._reads(), t._writes, is_upkeep=is_upkeep)

    def update_with(self, change: Callable[[Transaction], T], *, attempts: int = 100, is_upkeep: bool = False) -> T:
        """Run ``change(t)`` in a transaction, and again as long as it conflicts with another one.

        Parameters
        ----------
        change : callable
            Takes a `Transaction`; it may run several times, so it should have no other effects.
        attempts : int
            How often to try.
        is_upkeep : bool
            As for `transaction`.

        Returns
        -------
        object
            What `change` returned in the run that was committed.

        Raises
        ------
        ConflictError
            If every attempt conflicted.
        """
        for attempt in range(1, attempts + 1):
            try:
                with self.transaction(is_upkeep=is_upkeep) as t:
                    return change(t)
            except ConflictError:
                if attempt == attempts:
                    raise
                # A random pause, so that the same transactions do not conflict again.
                time.sleep(random.uniform(0, min(0.001 * attempt, 0.05)))
        raise ValueError(f"attempts is {attempts}; it must be at least 1")

    def commits(self) -> int:
        """Return the number of transactions of the program's committed so far, by all launches of the job."""
        return self._layout.commits()

    # The mapping's compound operations, each as one transaction.

    def pop(self, key: str, *default: Value) -> Value:
        """Delete a key and return its value, or the default if there is none."""
        return self.update_with(lambda t: t.pop(key, *default))

    def popitem(self) -> tuple[str, Value]:
        """Delete any one key and return it with its value."""
        return self.update_with(lambda t: t.popitem())

    def setdefault(self, key: str, default: Value = None) -> Value:
        """Return the value of a key; set it to the default first if it is missing."""
        return self.update_with(lambda t: t.setdefault(key, default))

    def clear(self) -> None:
        """Delete all keys."""
        self.update_with(lambda t: t.clear())

    def update(  # type: ignore[override]  # one signature in place of five overloads
        self, other: Mapping[str, Value] | Iterable[tuple[str, Value]] = (), /, **more: Value
    ) -> None:
        """Set several keys in one transaction."""
        values = {**dict(other), **more}
        self._commit("state.update(...)", {checked_key(key): _replacement(key, value) for key, value in values.items()})


@functools.cache
def _of_job(cls: type[S]) -> S:
    session = current_session()
    return cls(session.client, session.endpoint, session.environment.launch)


@functools.cache
def _of_file(cls: type[S]) -> S:
    state = cls.__new__(cls)
    state._layout = local_state()
    return state


class Transaction(MutableMapping[str, Value]):
    """Reads and writes that are committed together; created by `State.transaction`.

    Reads see State and this transaction's own writes.  What was read must still be unchanged at the commit.
    Values are copied when they are assigned or appended.
    """

    def __init__(self, layout: Layout | FileLayout) -> None:
        self._layout = layout
        self._records: dict[str, Record | None] = {}
        self._key_set_version: int | None = None
        self._writes: dict[str, Write] = {}
        self._open = True

    def __getitem__(self, key: str) -> Value:
        write = self._writes.get(key)
        if write is None:
            return self._stored(key)
        if write.name == "delete":
            raise KeyError(key)
        if write.name == "increment":
            return _sum(key, 0 if self._record(key) is None else self._stored(key), write.by)
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
        write = _replacement(checked_key(key), value)
        self._write(key, Write(write.name, [(tag, encoded.detached()) for tag, encoded in write.pieces]))

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._write(key, Write("delete"))

    def __contains__(self, key: object) -> bool:
        if not is_key(key):
            return False
        write = self._writes.get(key)
        return self._record(key) is not None if write is None else write.name != "delete"

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_keys())

    def __len__(self) -> int:
        return len(self._all_keys())

    def clear(self) -> None:
        """Delete all keys."""
        for key in self._all_keys():
            self._write(key, Write("delete"))

    def append(self, key: str, item: Value) -> None:
        """Append an item to a list without reading the list; a missing list is created.

        Raises
        ------
        NotAListError
            If the key holds something else: immediately if this transaction wrote it, else at the commit.
        """
        piece = (b"i", encode(checked_key(key), item).detached())
        write = self._writes.get(key)
        if write is not None and write.name in {"value", "increment"}:
            raise NotAListError(key)
        if write is None:
            self._write(key, Write("append", [piece]))
        elif write.name == "delete":
            self._write(key, Write("list", [piece]))
        else:
            self._write(key, write)
            write.pieces.append(piece)

    def increment(self, key: str, by: int = 1) -> None:
        """Add to an integer without reading it; a missing one counts as 0.

        Raises
        ------
        NotACounterError
            If the key holds something else: immediately if this transaction wrote it, else at the commit.
        """
        amount, write = _amount(checked_key(key), by), self._writes.get(key)
        if write is None:
            self._write(key, Write("increment", by=amount))
        elif write.name == "increment":
            self._write(key, Write("increment", by=_amount(key, write.by + amount)))
        else:
            self[key] = _sum(key, 0 if write.name == "delete" else self[key], amount)

    def _write(self, key: str, write: Write) -> None:
        if not self._open:
            raise ClosedTransactionError
        self._writes[key] = write

    def _record(self, key: str) -> Record | None:
        if key not in self._records:
            self._records[key] = self._layout.record(key)
        return self._records[key]

    def _stored(self, key: str) -> Value:
        record = self._record(key) if is_key(key) else None
        if record is None:
            raise KeyError(key)
        try:
            return self._layout.read(key, record)
        except Gone as gone:
            newer = self._layout.record(key)
            if newer is not None and newer.version == record.version:
                raise CorruptValueError(key, str(gone)) from None
            raise ConflictError(repr(key)) from None

    def _all_keys(self) -> list[str]:
        if self._key_set_version is None:
            self._key_set_version = self._layout.key_set_version()  # before the keys: a change in between is a conflict
        stored = [key for key in self._layout.all_keys() if key not in self._writes]
        return stored + [key for key, write in self._writes.items() if write.name != "delete"]

    def _reads(self) -> dict[str, str]:
        """Return the version of everything that was read."""
        reads = {key: ABSENT if record is None else record.version for key, record in self._records.items()}
        if self._key_set_version is not None:
            reads[KEY_SET] = str(self._key_set_version)
        return reads


def _replacement(key: str, value: Value) -> Write:
    if type(value) is list:
        return Write("list", [(b"b", encode(key, value))] if value else [])
    return Write("value", [(b"v", encode(key, value))])


def _amount(key: str, by: int) -> int:
    if type(by) is not int or abs(by) > MAX_COUNT:
        raise NotACounterError(key)
    return by


def _sum(key: str, value: Value, by: int) -> int:
    if type(value) is not int or abs(value) > MAX_COUNT or abs(value + by) > MAX_COUNT:
        raise NotACounterError(key)
    return value + by
