"""Where a program's shards go, as a checkpointer sees it; and files, for a program that runs without a job."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from laggard.kvstore.checkpoints.complete import ShardKey, ShardRecord
from laggard.kvstore.checkpoints.folder import map_shard_file, shard_file, write_shard_file
from laggard.kvstore.checkpoints.layout import Plan, digest, sums_of
from laggard.kvstore.checkpoints.shard import Shard, verify_whole


class Unreadable(Exception):  # noqa: N818 - says why, to the checkpointer, which knows the step
    """Why a shard cannot be read."""


class FolderStore:
    """Shards in files beside the State of a program that runs without a job."""

    has_directory = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def servers(self) -> Mapping[str, str]:
        """Return nothing: there are none."""
        return {}

    def write(self, plan: Plan, key: ShardKey, copies: int, announce: Callable[[ShardRecord], None]) -> None:
        """Write a shard to a file, and announce it."""
        del key, copies
        content = plan.content()
        sums = sums_of(content)
        shard_id = secrets.token_hex(8)
        write_shard_file(self._folder, shard_id, content, sums)
        announce(ShardRecord(shard_id, plan.size_bytes, 0, directory=True, in_directory=True, sums=digest(sums)))

    def prepare(self, owner: str, size_bytes: int) -> None:
        """Do nothing: a disk needs no preparation."""

    def read(self, key: ShardKey, record: ShardRecord, *, whole: bool) -> Shard:
        """Map the file."""
        del whole
        return read_from_folder(self._folder, key, record)

    def forget(self, ids: Iterable[str]) -> None:
        """Remove the files of these shards."""
        for shard_id in ids:
            shard_file(self._folder, shard_id).unlink(missing_ok=True)


def read_from_folder(folder: Path, key: ShardKey, record: ShardRecord) -> Shard:
    """Return a shard that lies in a file, mapped and verified."""
    try:
        mapped, sums = map_shard_file(folder, record.id, record.size_bytes)
    except (OSError, ValueError) as error:
        raise Unreadable(f"its file in {folder} cannot be read: {error}") from error
    content = memoryview(mapped)
    if wrong := verify_whole(content, sums, record.sums):
        raise Unreadable(f"in {folder}, {wrong}")
    return Shard.whole(key.record, content)
