"""State without a job: the same mapping in an SQLite file, for a program that is run without the launcher.

It is for one machine: locks on network file systems are unreliable.  A run of the program is a launch, with a number of
its own; the processes of one run find their number by the process that started them, or in their environment.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from pathlib import Path

from laggard.kvstore.client.environment import ENDPOINT_FILE, RANK_VARIABLES
from laggard.kvstore.errors import (
    ConflictError,
    FencedError,
    LocalStateError,
    NotACounterError,
    NotAListError,
    NotInJobError,
    StateFullError,
)
from laggard.kvstore.state.layout import ABSENT, KEY_SET, MAX_COUNT, Gone, Record, Write, is_key
from laggard.kvstore.values.codec import Encoded, decode, encode
from laggard.kvstore.values.decoding import Value

LOCAL_STATE = "LAGGARD_LOCAL_STATE"
_FILE = "laggard-state.db"  # and the program's name before it
# The children of a process find its launch here.
_LAUNCH = "LAGGARD_LOCAL_LAUNCH"
_BUSY_S = 60.0  # a commit of another process may be gigabytes
_PRIVATE_FILE = 0o600
# SQLite takes values of up to 1 GB; smaller ones need less memory at a time.
CHUNK_BYTES = 64 << 20
# How launchers say how many processes there are in all, and on this machine.
_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
_log = logging.getLogger("laggard.kvstore")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS launches (number INTEGER PRIMARY KEY, run TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER);
CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, version INTEGER, kind TEXT);
CREATE TABLE IF NOT EXISTS pieces (
    key BLOB, position INTEGER, chunk INTEGER, tag BLOB, data BLOB, PRIMARY KEY (key, position, chunk)
);
INSERT OR IGNORE INTO counters VALUES ('commits', 0), ('keys', 0);
"""


def is_outside_jobs() -> bool:
    """Return whether this process was not started by laggard."""
    return ENDPOINT_FILE not in os.environ


@functools.cache
def local_state() -> FileLayout:
    """Return this process's State outside of jobs; one process of the program says once where it is."""
    _check_one_machine()
    path = Path(os.environ.get(LOCAL_STATE, file_of(sys.argv[0]))).absolute()
    known = os.environ.get(_LAUNCH)
    launch, is_new = FileLayout.begin_launch(path, _run()) if known is None else (int(known), False)
    os.environ[LOCAL_STATE], os.environ[_LAUNCH] = str(path), str(launch)
    if is_new:
        advice = "delete it to start afresh; 'laggard PROGRAM' runs the program as a job"
        _log.warning("not in a laggard job: State is in %s, and this is its run %d (%s)", path, launch, advice)
    return FileLayout(path, launch)


def file_of(program: str) -> str:
    """Return the name of the file for the State of a program, of which the path is given."""
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.stem
    return _FILE if name in ("", "-c", "-m") else f"{name}.{_FILE}"


def _check_one_machine() -> None:
    sizes = [(os.environ[every], os.environ[here]) for every, here in _SIZES if {every, here} <= os.environ.keys()]
    what = next((f"process is one of {n} of which {n_here} are here" for n, n_here in sizes if n != n_here), "")
    if int(n_nodes := os.environ.get("SLURM_STEP_NUM_NODES", "1")) > 1:
        what = what or f"is a Slurm step on {n_nodes} nodes"
    if what:
        raise NotInJobError(
            f"not in a laggard job, and without one State is for a single machine, but this {what}: "
            "start the program with 'laggard PROGRAM'"
        )


def _run() -> str:
    """Return what the processes of one run of the program have in common, and no other run has."""
    is_rank = any(name in os.environ for name in (*RANK_VARIABLES, "SLURM_PROCID"))
    parent = multiprocessing.parent_process()  # of a rank that `torch.multiprocessing.spawn` has started
    leader = parent.pid if parent is not None else os.getppid() if is_rank else os.getpid()
    # In ticks since the machine was booted: as a time of day it would change with the clock.
    began = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {leader} {began} {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


class FileLayout:
    """Reads and writes records in an SQLite file; it does for `State` what `Layout` does on a server."""

    def __init__(self, path: Path, launch: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path  # the file
        self.launch = launch  # the caller's launch, from `begin_launch`
        self._chunk_bytes = chunk_bytes  # of the largest row

    @property
    def place(self) -> str:
        """Where State is, for messages."""
        return str(self.path)

    @classmethod
    def begin_launch(cls, path: Path, run: str) -> tuple[int, bool]:
        """Create the file if it is missing; return the number of a run, and whether the run was not known yet."""
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            path.touch(mode=_PRIVATE_FILE)
        with _opened(path, "BEGIN IMMEDIATE") as file:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                file.execute(statement)
            added = file.execute("INSERT OR IGNORE INTO launches VALUES ((SELECT count(*) FROM launches), ?)", [run])
            return _number(file, "SELECT number FROM launches WHERE run = ?", run), added.rowcount == 1

    def command(self) -> str:
        """Return what the runs that one command has started have in common: torchrun starts a program again."""
        with self._reading() as file:
            found = file.execute("SELECT run FROM launches WHERE number = ?", [self.launch]).fetchone()
        return str(found[0]).rpartition(" ")[0]

    def record(self, key: str) -> Record | None:
        """Return a key's record, or None if there is no such key."""
        with self._reading() as file:
            return _record(file, key)

    def count(self) -> int:
        """Return the number of keys."""
        with self._reading() as file:
            return _number(file, "SELECT count(*) FROM records")

    def all_keys(self) -> list[str]:
        """Return all keys."""
        with self._reading() as file:
            return [bytes(key).decode() for (key,) in file.execute("SELECT key FROM records")]

    def commits(self) -> int:
        """Return the number of commits so far."""
        with self._reading() as file:
            return _number(file, "SELECT value FROM counters WHERE name = 'commits'")

    def key_set_version(self) -> int:
        """Return a number that changes whenever a key is added or deleted."""
        with self._reading() as file:
            return _number(file, "SELECT value FROM counters WHERE name = 'keys'")

    def read(self, key: str, record: Record) -> Value:
        """Read the value of a record."""
        with self._reading() as file:
            if _record(file, key) != record:
                raise Gone("it was replaced")
            return _value(file, key)

    def commit(self, reads: Mapping[str, str], writes: Mapping[str, Write], *, is_upkeep: bool = False) -> None:
        """Apply all writes if everything that was read still has the given version, else none."""
        del is_upkeep  # nobody asks how far a program without a job is
        if not reads and not writes:
            return
        with _opened(self.path, "BEGIN IMMEDIATE") as file:
            current = _number(file, "SELECT max(number) FROM launches")
            if current > self.launch:
                raise FencedError(self.launch, current)
            for key, version in reads.items():
                if version != _version(file, key):
                    raise ConflictError("the set of keys" if key == KEY_SET else repr(key))
            if not writes:
                return
            file.execute("UPDATE counters SET value = value + 1 WHERE name = 'commits'")
            n_keys = _number(file, "SELECT count(*) FROM records")
            added = sum(_apply(file, key, write, self._chunk_bytes) for key, write in writes.items())
            if added or n_keys != _number(file, "SELECT count(*) FROM records"):
                file.execute("UPDATE counters SET value = value + 1 WHERE name = 'keys'")

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return _opened(self.path, "BEGIN")


@contextmanager
def _opened(path: Path, begin: str) -> Iterator[sqlite3.Connection]:
    """Open the file for one transaction, which is committed at the end of the block unless there is an error."""
    file: sqlite3.Connection | None = None
    try:
        file = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        file.execute(begin)
        yield file
        file.execute("COMMIT")
    except sqlite3.Error as error:
        if "full" in str(error):
            raise StateFullError(str(path), str(error)) from error
        raise LocalStateError(str(path), str(error)) from error
    finally:
        if file is not None:
            file.close()


def _number(file: sqlite3.Connection, query: str, *values: object) -> int:
    found = file.execute(query, values).fetchone()
    return 0 if found is None or found[0] is None else int(found[0])


def _record(file: sqlite3.Connection, key: str) -> Record | None:
    if not is_key(key):
        return None
    found = file.execute("SELECT version, kind FROM records WHERE key = ?", [key.encode()]).fetchone()
    return None if found is None else Record(str(found[0]), memoryview(found[1].encode()))


def _version(file: sqlite3.Connection, key: str) -> str:
    if key == KEY_SET:
        return str(_number(file, "SELECT value FROM counters WHERE name = 'keys'"))
    record = _record(file, key)
    return ABSENT if record is None else record.version


def _value(file: sqlite3.Connection, key: str) -> Value:
    order = "SELECT position, tag, data FROM pieces WHERE key = ? ORDER BY position, chunk"
    items: list[Value] = []
    for (_, tag), chunks in groupby(file.execute(order, [key.encode()]), lambda row: row[:2]):
        content = decode(key, (row[2] for row in chunks))
        if tag == b"v":
            return content
        items.extend(content if tag == b"b" else [content])
    return items


def _apply(file: sqlite3.Connection, key: str, write: Write, chunk_bytes: int) -> bool:
    """Apply one write; return whether it added a key."""
    record = _record(file, key)
    kind = None if record is None else record.tag
    match write.name:
        case "increment":
            _increment(file, key, write.by, is_new=record is None)
        case "append":
            if kind not in (None, b"l"):
                raise NotAListError(key)
            _set_record(file, key, "l")
            _add_pieces(file, key, write.pieces, chunk_bytes)
        case "delete":
            _delete(file, key)
            return False
        case _:
            _delete(file, key)
            _set_record(file, key, "l" if write.name == "list" else "v")
            _add_pieces(file, key, write.pieces, chunk_bytes)
    return record is None


def _increment(file: sqlite3.Connection, key: str, by: int, *, is_new: bool) -> None:
    before = 0 if is_new else _value(file, key)
    if type(before) is not int or abs(before) > MAX_COUNT or abs(before + by) > MAX_COUNT:
        raise NotACounterError(key)
    _delete(file, key)
    _set_record(file, key, "v")
    _add_pieces(file, key, [(b"v", encode(key, before + by))], CHUNK_BYTES)


def _delete(file: sqlite3.Connection, key: str) -> None:
    for table in ("records", "pieces"):
        file.execute(f"DELETE FROM {table} WHERE key = ?", [key.encode()])  # noqa: S608 - of ours


def _set_record(file: sqlite3.Connection, key: str, kind: str) -> None:
    version = "(SELECT value FROM counters WHERE name = 'commits')"
    file.execute(f"INSERT OR REPLACE INTO records VALUES (?, {version}, ?)", [key.encode(), kind])  # noqa: S608 - of ours


def _add_pieces(file: sqlite3.Connection, key: str, pieces: list[tuple[bytes, Encoded]], chunk_bytes: int) -> None:
    name = key.encode()
    first = _number(file, "SELECT max(position) + 1 FROM pieces WHERE key = ?", name)
    for position, (tag, encoded) in enumerate(pieces, first):
        rows = ((name, position, n, tag, chunk) for n, chunk in enumerate(encoded.chunks(chunk_bytes)))
        file.executemany("INSERT INTO pieces VALUES (?, ?, ?, ?, ?)", rows)
