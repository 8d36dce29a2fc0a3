"""Shards as files in a folder: the shared directory of a job, or what lies beside the State of a program without one.

A file is the shard, then its checksums.  It appears under its name when all of it is on disk, and only its owner can
read it.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from laggard.kvstore.errors import StateFullError

_SUFFIX = ".shard"
_PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600


def shard_file(folder: Path, shard_id: str) -> Path:
    """Return the path of a shard."""
    return folder / (shard_id + _SUFFIX)


def write_shard_file(folder: Path, shard_id: str, content: memoryview, sums: bytes) -> None:
    """Write a shard and its checksums."""
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    draft = folder / f".{shard_id}.{secrets.token_hex(4)}"
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE), "wb") as file:
            file.write(content)
            file.write(sums)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(shard_file(folder, shard_id))
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StateFullError(str(folder), str(error.strerror)) from error
        raise
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def map_shard_file(folder: Path, shard_id: str, size_bytes: int) -> tuple[mmap.mmap, bytes]:
    """Return the content of a shard, mapped privately, and its checksums."""
    with shard_file(folder, shard_id).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY)
        file.seek(size_bytes)
        return mapped, file.read()


def remove_other_shards(folder: Path, kept: Callable[[], Iterable[str]]) -> None:
    """Remove the shards whose ids are none of those kept, which are looked up once it is known what is there."""
    found = list(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
    names = {shard_id + _SUFFIX for shard_id in kept()} if found else set()
    for file in found:
        if file.name not in names:
            file.unlink(missing_ok=True)
