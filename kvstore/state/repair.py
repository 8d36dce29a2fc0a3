"""Repairs the log of a state server: back to its last good commit, or to the last backup.

Nothing is destroyed.  A directory with the good part of the log is made beside the damaged one; a server that starts on
it and all values that are read from it prove that it is good; then the two are exchanged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from laggard.kvstore.errors import CorruptValueError, DamagedLogError, ServerError, StateDirectoryError
from laggard.kvstore.server.directory import DATA, IDENTITY, locked, unusable
from laggard.kvstore.server.process import BACKUP, StateServer
from laggard.kvstore.state.commits import ACKNOWLEDGEMENT_EXPIRY_S
from laggard.kvstore.state.log_scan import Commit, Scan, scan
from laggard.kvstore.state.mapping import State

_NAME = "appendonly.aof"
_MANIFEST = f"{_NAME}.manifest"
_FILE = re.compile(r"appendonly\.aof\.(\d+)\.(base|incr)\.(rdb|aof)")
_LOCK_DEADLINE_S = 5.0
_STUCK_S = 60.0
_LONG_BYTES = 1 << 28  # takes seconds to read


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair has found and done."""

    keys: int  # how many keys State has now, and how many commits have led to it
    commits: int
    committed_at_s: float | None  # Unix time of the last of them; None if the log does not tell
    damaged_values: tuple[str, ...]  # keys whose values do not match their checksums
    damage: str | None  # what was wrong, and where; None if the log was whole
    lost_bytes: int  # length of what was left out of the log
    kept: Path | None  # folder that now holds the damaged log; None if nothing was changed
    newer_backup_s: float | None  # Unix time of a backup that is newer than the last commit; None if there is none


@dataclass(frozen=True, slots=True)
class _Found:
    """The good part of a log: files to take whole, and how much of the one that is cut."""

    files: tuple[tuple[str, int], ...]
    last_commit: Commit | None
    damage: str | None
    lost_bytes: int


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
            draft = Path(tempfile.mkdtemp(prefix="repair-", dir=directory))
            try:
                return _repair(directory, draft, backup, tell)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        except OSError as error:
            raise unusable(directory, error) from error


def _repair(directory: Path, draft: Path, backup: bool, tell: Callable[[str], None]) -> Repair:
    shutil.copy(directory / IDENTITY, draft)
    job = json.loads((directory / IDENTITY).read_text(encoding="utf-8"))["job"]
    backup_s = _backup_time_s(directory)
    (draft / DATA).mkdir(mode=0o700)
    if backup:
        if backup_s is None:
            raise StateDirectoryError(str(directory), "there is no backup in it; leave out --backup")
        found = _Found((), None, f"it was replaced by the backup of {_clock(backup_s)}", _size(directory / DATA))
        _copy(directory / BACKUP, draft / DATA / f"{_NAME}.1.base.rdb")
        files: Sequence[str] = [f"{_NAME}.1.base.rdb"]
    else:
        found = _good_part(directory / DATA, _arities(), tell)
        for name, nbytes in found.files:
            _copy(directory / DATA / name, draft / DATA / name, nbytes)
        files = [name for name, _ in found.files]
    _write_manifest(draft / DATA, files)
    try:
        server = StateServer.start(draft, job=job, deadline_s=_STUCK_S, on_loading=tell)
    except ServerError as error:
        raise DamagedLogError(str(directory), _advice(directory, backup_s, backup), str(error)) from error
    with server, server.endpoint.connect() as client:
        state = State(client, server.endpoint, launch=0)
        keys = list(state)
        commits, damaged_values = state.commits(), _damaged(state, keys, tell)
    kept = None
    if found.damage is not None:
        kept = Path(tempfile.mkdtemp(prefix=time.strftime("damaged-%Y%m%d-%H%M%S-"), dir=directory))
        _exchange(directory, draft, kept)
    at_s = _time_of(found.last_commit)
    newer_s = backup_s if backup_s and not backup and kept and (at_s is None or backup_s > at_s) else None
    return Repair(len(keys), commits, at_s, damaged_values, found.damage, found.lost_bytes, kept, newer_s)


def _good_part(data: Path, arities: Mapping[str, int], tell: Callable[[str], None]) -> _Found:
    """Find what is good in a log: its files in order, up to the first damage."""
    names, damage = _files(data)
    good: list[tuple[str, int]] = []
    last: Commit | None = None
    lost_bytes = 0
    for at, name in enumerate(names):
        path = data / name
        size = path.stat().st_size if path.exists() else 0
        if name.endswith(".rdb"):  # it has a checksum, which the server looks at
            good.append((name, size))
            continue
        if size >= _LONG_BYTES:
            tell(f"reading {name}: {size / 1e9:.1f} GB")
        with path.open("rb") as file:
            result: Scan = scan(file, size, arities)
        last = result.last_commit or last
        good.append((name, result.good_bytes))
        if result.damage is not None:
            later = sum((data / other).stat().st_size for other in names[at + 1 :])
            damage = f"{name} after byte {result.good_bytes}: {result.damage}"
            lost_bytes = size - result.good_bytes + later
            break
    return _Found(tuple(good), last, damage, lost_bytes)


def _files(data: Path) -> tuple[list[str], str | None]:
    """Return the names of a log's files in order, and what is wrong with the list of them."""
    there = {path.name for path in data.iterdir()}
    with suppress(OSError, ValueError):
        lines = (data / _MANIFEST).read_text(encoding="ascii").splitlines()
        listed = [fields for line in lines if len(fields := line.split()) == 6 and fields[5] in {"b", "i"}]
        if listed and all(fields[0] == "file" and _FILE.fullmatch(fields[1]) for fields in listed):
            listed.sort(key=lambda fields: (fields[5] != "b", int(fields[3])))
            names = [fields[1] for fields in listed]
            present = [name for name in names if name in there]
            missing = [name for name in names if name not in there]
            if not missing:
                return names, None
            # What comes after a gap does not count.
            return present[: names.index(missing[0])], f"{missing[0]} is missing"
    numbered = sorted(
        (match[2] != "base", int(match[1]), match[0]) for name in there if (match := _FILE.fullmatch(name))
    )
    bases = [entry for entry in numbered if not entry[0]]
    return [name for _, _, name in [*bases[-1:], *numbered[len(bases) :]]], f"{_MANIFEST} cannot be read"


def _write_manifest(data: Path, names: Sequence[str]) -> None:
    lines = []
    for name in names:
        match = cast("re.Match[str]", _FILE.fullmatch(name))
        lines.append(f"file {name} seq {match[1]} type {match[2][0]}\n")
    (data / _MANIFEST).write_text("".join(lines), encoding="ascii")


def _arities() -> dict[str, int]:
    """Ask a server that holds nothing which commands it knows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        StateServer.start(Path(folder), job="commands") as server,
        server.endpoint.connect() as client,
    ):
        described = cast("dict[str, Any]", client.command())
    return {name.lower(): int(about["arity"]) for name, about in described.items()}


def _damaged(state: State, keys: Sequence[str], tell: Callable[[str], None]) -> tuple[str, ...]:
    damaged = []
    next_s = time.monotonic() + 5
    for n, key in enumerate(keys):
        try:
            state[key]
        except (CorruptValueError, KeyError):  # or the key itself is damaged
            damaged.append(key)
        if time.monotonic() > next_s:
            next_s += 15
            tell(f"checking values: {n / len(keys):.0%} of {len(keys)}")
    return tuple(damaged)


def _exchange(directory: Path, draft: Path, kept: Path) -> None:
    (directory / DATA).rename(kept / DATA)
    with suppress(FileNotFoundError):  # the next one of the job replaces it
        os.link(directory / BACKUP, kept / BACKUP)
    (draft / DATA).rename(directory / DATA)


def _copy(source: Path, target: Path, nbytes: int | None = None) -> None:
    """Copy a file's beginning, onto the disk; never a link, for the server goes on writing to its last file."""
    with source.open("rb") as old, target.open("wb") as new:
        left = source.stat().st_size if nbytes is None else nbytes
        while left and (block := old.read(min(left, 1 << 20))):
            new.write(block)
            left -= len(block)
        new.flush()
        os.fsync(new.fileno())


def _backup_time_s(directory: Path) -> float | None:
    with suppress(OSError):
        return (directory / BACKUP).stat().st_mtime
    return None


def _advice(directory: Path, backup_s: float | None, tried: bool) -> str:
    if backup_s is None or tried:
        return "no repair is possible: name another directory, or restore this one from a copy"
    return f"go back to the backup of {_clock(backup_s)} with `laggard repair-state --backup {directory}`"


def _time_of(commit: Commit | None) -> float | None:
    if commit is None or commit.forgotten_ms is None:
        return None
    return commit.forgotten_ms / 1000 - ACKNOWLEDGEMENT_EXPIRY_S


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
