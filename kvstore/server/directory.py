"""The directory of a state server: whose it is, and that only one process uses it at a time."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from laggard.kvstore.client.connection import write_private
from laggard.kvstore.errors import StateDirectoryError

DATA = "appendonlydir"
# The server's list of its log's files, one a line: `file NAME seq NUMBER type b|h|i` (base, history, increment).
MANIFEST = "appendonly.aof.manifest"
# The base of a log in which nothing was ever written has less, and its increment nothing.
_EMPTY_BASE_BYTES = 1024
_FORMAT = 1  # of what is in the directory
IDENTITY = "state.json"
_LOCK = "lock"
_HOLDER = "holder.json"
_POLL_S = 0.005


def claim(directory: Path, job: str) -> str:
    """Claim the directory for the job and return its password, which is new the first time."""
    identity = directory / IDENTITY
    try:
        if not identity.exists():
            write_private(identity, json.dumps({"format": _FORMAT, "job": job, "password": secrets.token_hex(32)}))
        found = json.loads(identity.read_text(encoding="utf-8"))
        version, owner, password = found["format"], found["job"], found["password"]
    except OSError as error:
        raise unusable(directory, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise StateDirectoryError(
            str(directory), f"its {IDENTITY} is damaged ({error!r}); restore it or name another directory"
        ) from error
    if version != _FORMAT:
        raise StateDirectoryError(
            str(directory),
            f"its format is {version} and this version of laggard reads {_FORMAT}; use the version that wrote it",
        )
    if owner != job:
        raise StateDirectoryError(
            str(directory), f"it belongs to job {owner!r}, not {job!r}; name another directory, or that job"
        )
    return str(password)


@contextmanager
def locked(directory: Path, deadline: float) -> Iterator[int]:
    """Lock the directory and yield the lock's descriptor, which the server inherits and holds until it ends."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _guard(directory)
        fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(directory, error) from error
    try:
        while not _try_lock(fd):
            # The server of a job that was killed ends in a moment; that of a job that runs does not.
            holder = _living_holder(directory)
            if holder is not None or time.monotonic() > deadline:
                who = "another state server" if holder is None else f"a job of process {holder} on this machine"
                raise StateDirectoryError(str(directory), f"{who} is using it; end that job or name another directory")
            time.sleep(_POLL_S)
        try:
            _write_holder(directory)
        except OSError as error:
            raise unusable(directory, error) from error
        yield fd
    finally:
        os.close(fd)


def _write_holder(directory: Path) -> None:
    """Record which process on which machine has the lock, for whoever finds the directory locked."""
    me = psutil.Process()
    holder = {"machine": socket.gethostname(), "pid": me.pid, "created_s": me.create_time()}
    write_private(directory / _HOLDER, json.dumps(holder))


def _living_holder(directory: Path) -> int | None:
    """Return the process id of who has the lock, if it is another process of this machine and still runs."""
    try:
        holder = json.loads((directory / _HOLDER).read_text(encoding="utf-8"))
        machine, pid, created_s = holder["machine"], int(holder["pid"]), float(holder["created_s"])
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE or process.create_time() != created_s
    except (OSError, ValueError, TypeError, KeyError, psutil.Error):
        return None  # it is not known, and waiting shows who has it
    return None if ended or machine != socket.gethostname() or pid == os.getpid() else pid


def lacks_its_list(directory: Path) -> bool:
    """Return whether there is a log without the list of its files, in whose place a server would begin an empty one."""
    data = directory / DATA
    if not data.is_dir() or (data / MANIFEST).exists():
        return False
    return any(file.stat().st_size > (_EMPTY_BASE_BYTES if file.suffix == ".rdb" else 0) for file in data.iterdir())


def _guard(directory: Path) -> None:
    """Refuse a directory that other users can tamper with, and restrict modes that a copy may have widened."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise StateDirectoryError(
            str(directory), f"every user can write to it (mode {mode:04o}); name another directory"
        )
    trusted = {os.geteuid(), directory.stat().st_uid}
    for name, private in ((IDENTITY, 0o600), (DATA, 0o700)):
        path = directory / name
        if os.path.lexists(path):
            if path.lstat().st_uid not in trusted:
                raise StateDirectoryError(str(directory), f"its {name} belongs to another user; name another directory")
            path.chmod(private)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unusable(directory: Path, error: OSError) -> StateDirectoryError:
    """Return the error for a directory that the operating system refuses."""
    return StateDirectoryError(str(directory), f"{error.strerror}; name a writable directory on a disk with free space")
