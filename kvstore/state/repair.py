"""Repairs the log of a state server: back to its last good commit, or to the last backup.

Nothing is destroyed.  A directory with the good part of the log is made beside the damaged one; a server that starts on
it proves that it is good; then the two are exchanged.  Values have checksums of their own, for whoever reads them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from laggard.kvstore.errors import DamagedLogError, ServerError, StateDirectoryError
from laggard.kvstore.server.directory import DATA, IDENTITY, MANIFEST, locked, unusable
from laggard.kvstore.server.process import BACKUP, StateServer
from laggard.kvstore.state.layout import ACKNOWLEDGEMENT_EXPIRY_S
from laggard.kvstore.state.log_scan import scan
from laggard.kvstore.state.mapping import State

_BASE = "appendonly.aof.1.base.rdb"
_LOCK_DEADLINE_S = 5.0  # a job that was killed ends in a moment
_STUCK_S = 60.0  # for a server on a slow disk that gets no further with its log
_LONG_BYTES = 1 << 28  # takes seconds to read


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair has found and done."""

    keys: int  # how many keys State has now, and how many commits have led to it
    commits: int
    committed_at_s: float | None  # Unix time of the last of them; None if the log does not tell
    damage: str | None  # what was wrong, and where; None if the log was whole
    lost_bytes: int  # length of what was left out of the log
    kept: Path | None  # folder that now holds the damaged log; None if nothing was changed
    newer_backup_s: float | None  # Unix time of a backup that is newer than the last commit; None if there is none


@dataclass(frozen=True, slots=True)
class _Good:
    """What of a log has been taken over."""

    damage: str | None
    lost_bytes: int
    committed_at_s: float | None = None


def repair(
    directory: Path,
    *,
    backup: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    lock_deadline_s: float = _LOCK_DEADLINE_S,
) -> Repair:
    """Repair the log in a state directory that no server uses."""
    directory = directory.absolute()
    identity = directory / IDENTITY
    if not identity.exists() or not (directory / DATA).is_dir():
        raise StateDirectoryError(str(directory), f"there is no log of State in it (no {IDENTITY} or no {DATA}/)")
    with locked(directory, time.monotonic() + lock_deadline_s):
        try:
            with tempfile.TemporaryDirectory(prefix="repair-", dir=directory) as draft:
                return _repair(directory, Path(draft), backup, tell)
        except OSError as error:
            raise unusable(directory, error) from error


def _repair(directory: Path, draft: Path, backup: bool, tell: Callable[[str], None]) -> Repair:
    shutil.copy(directory / IDENTITY, draft)
    job = json.loads((directory / IDENTITY).read_text(encoding="utf-8"))["job"]
    backup_s = (directory / BACKUP).stat().st_mtime if (directory / BACKUP).exists() else None
    (draft / DATA).mkdir(mode=0o700)
    try:
        good = (
            _take_backup(directory, draft, backup_s)
            if backup
            else _take_good_part(directory / DATA, draft / DATA, tell)
        )
        server = StateServer.start(draft, job=job, deadline_s=_STUCK_S, on_loading=tell)
    except (ServerError, ValueError) as error:
        if isinstance(error, StateDirectoryError):
            raise
        raise DamagedLogError(str(directory), _advice(directory, backup_s, backup), str(error)) from error
    with server, server.endpoint.connect() as client:
        state = State(client, server.endpoint, launch=0)
        n_keys, commits = len(state), state.commits()
    kept = newer_s = None
    if good.damage is not None:
        kept = Path(tempfile.mkdtemp(prefix=time.strftime("damaged-%Y%m%d-%H%M%S-"), dir=directory))
        _exchange(directory, draft, kept)
        if backup_s and not backup and (good.committed_at_s is None or backup_s > good.committed_at_s):
            newer_s = backup_s
    return Repair(n_keys, commits, good.committed_at_s, good.damage, good.lost_bytes, kept, newer_s)


def _take_backup(directory: Path, draft: Path, backup_s: float | None) -> _Good:
    if backup_s is None:
        raise StateDirectoryError(str(directory), "there is no backup in it; leave out --backup")
    _copy(directory / BACKUP, draft / DATA / _BASE)
    (draft / DATA / MANIFEST).write_text(f"file {_BASE} seq 1 type b\n", encoding="ascii")
    return _Good(f"it was replaced by the backup of {_clock(backup_s)}", _size(directory / DATA))


def _take_good_part(old: Path, new: Path, tell: Callable[[str], None]) -> _Good:
    """Copy the files of a log in order, up to the first damage, and the list of them."""
    arities, damage, forgotten_ms, good_bytes = _arities(), None, None, 0
    try:
        listed = [line.split() for line in (old / MANIFEST).read_text(encoding="ascii").splitlines()]
        files = sorted((kind != "b", int(number), name) for _, name, _, number, _, kind in listed if kind != "h")
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{MANIFEST} cannot be read") from error
    with (new / MANIFEST).open("w", encoding="ascii") as manifest:
        for is_increment, number, name in files:
            if not (old / name).exists():
                damage = f"{name} is missing"
                break
            size_bytes = (old / name).stat().st_size
            if is_increment:
                if size_bytes >= _LONG_BYTES:
                    tell(f"reading {name}: {size_bytes / 1e9:.1f} GB")
                with (old / name).open("rb") as file:
                    found = scan(file, arities)
                size_bytes, forgotten_ms = found.good_bytes, found.forgotten_ms or forgotten_ms
                damage = found.damage and f"{name} after byte {found.good_bytes}: {found.damage}"
            _copy(old / name, new / name, size_bytes)
            good_bytes += size_bytes
            manifest.write(f"file {name} seq {number} type {'i' if is_increment else 'b'}\n")
            if damage is not None:
                break
    committed_at_s = None if forgotten_ms is None else forgotten_ms / 1000 - ACKNOWLEDGEMENT_EXPIRY_S
    lost_bytes = sum((old / name).stat().st_size for *_, name in files if (old / name).exists()) - good_bytes
    return _Good(damage, lost_bytes, committed_at_s)


def _arities() -> dict[str, int]:
    """Ask a server that holds nothing which commands it knows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        StateServer.start(Path(folder), job="commands") as server,
        server.endpoint.connect() as client,
    ):
        described = cast("dict[str, Any]", client.command())
    return {name.lower(): int(about["arity"]) for name, about in described.items()}


def _exchange(directory: Path, draft: Path, kept: Path) -> None:
    (directory / DATA).rename(kept / DATA)
    with suppress(FileNotFoundError):  # the next one of the job replaces it
        os.link(directory / BACKUP, kept / BACKUP)
    (draft / DATA).rename(directory / DATA)


def _copy(source: Path, target: Path, size_bytes: int | None = None) -> None:
    """Copy a file, or its beginning, onto the disk; never a link, for the server goes on writing to its last file."""
    shutil.copyfile(source, target)
    with target.open("r+b") as file:
        if size_bytes is not None:
            file.truncate(size_bytes)
        os.fsync(file.fileno())


def _advice(directory: Path, backup_s: float | None, tried: bool) -> str:
    if backup_s is None or tried:
        return "no repair is possible: name another directory, or restore this one from a copy"
    return f"go back to the backup of {_clock(backup_s)} with `laggard repair-state --backup {directory}`"


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
