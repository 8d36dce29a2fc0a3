"""The memory of a node that holds shards: files without a name, within a bound.

A file without a name exists as long as a process has it open: when the shard server and the program have ended, however
they ended, the kernel frees its memory.  A file that is no longer needed is used again for another shard of its owner,
since fresh memory costs several times what it takes to copy into memory that has been used before.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from laggard.errors import LaggardError
from laggard.kvstore.checkpoints.bounds import memory_to_spare_bytes
from laggard.kvstore.checkpoints.shard_file import ShardFile, whole_grains
from laggard.system.memory import memory_available_bytes


class NoRoom(LaggardError):  # noqa: N818 - says why, to the server, which tells the program
    """A shard does not fit."""

    bound_bytes: int  # how much there may be, and how much of that cannot be freed
    used_bytes: int
    reason: str  # whose limit it is: `bound` or `file system`


class ShardMemory:
    """All shards that a node holds. From any thread."""

    def __init__(
        self, folder: Path | None, bound_bytes: int, to_spare_bytes: Callable[[], int] = memory_to_spare_bytes
    ) -> None:
        # On a file system in memory; None: there is none of a useful size, and the kernel's own is used
        self._folder = folder
        self.bound_bytes = bound_bytes  # how much of it to use at most, the spare files included
        # Returns how much more memory the node can do without; below 0 it is short of memory
        self._to_spare_bytes = to_spare_bytes
        # A program may have files of a server that was killed mapped, and must not take ours for them.
        self._numbers = itertools.count(secrets.randbits(40) << 20)
        self._lock = threading.Lock()
        self._files: set[ShardFile] = set()  # the spare ones included
        self._spare: list[ShardFile] = []  # one for each owner at most, the oldest first

    def numbers(self) -> list[int]:
        """Return the numbers of all files there are, the spare ones included."""
        with self._lock:
            return sorted(file.number for file in self._files)

    def take(self, size_bytes: int, owner: str) -> ShardFile:
        """Return a file of this size for a new shard."""
        reserved_bytes = whole_grains(size_bytes)
        with self._lock:
            if self._used_bytes() + reserved_bytes > self.bound_bytes:
                raise NoRoom(self.bound_bytes, self._used_bytes(), "bound")
            file = self._spare_of(owner)
            if file is None:
                file = self._new(owner)
            else:
                self._spare.remove(file)
            try:
                self._make_room(reserved_bytes - file.reserved_bytes)
                if reserved_bytes < file.reserved_bytes:  # whoever has it mapped must not touch what it loses
                    file.number = next(self._numbers)
                file.resize(reserved_bytes)
            except (NoRoom, OSError):
                self._remove(file)
                file.close()
                raise
            file.size_bytes, file.is_over = size_bytes, False
            return file

    def give_back(self, file: ShardFile) -> None:
        """Keep a file that is no longer needed as a spare one, unless somebody may still read it."""
        with self._lock:
            file.is_over = True
            surplus = self._settle(file)
        if surplus is not None:
            surplus.close()

    @contextmanager
    def reading(self, file: ShardFile) -> Iterator[ShardFile | None]:
        """Keep a file from being written again during a block; None if it is over already."""
        with self._lock:
            found = None if file.is_over else file
            file.readers += 1
        try:
            yield found
        finally:
            with self._lock:
                file.readers -= 1
                surplus = self._settle(file)
            if surplus is not None:
                surplus.close()

    def lend(self, file: ShardFile) -> None:
        """Note that a program maps a file to read it."""
        with self._lock:
            file.is_lent = True

    def prepare(self, size_bytes: int, owner: str) -> tuple[int, int] | None:
        """Return number and descriptor, to be closed, of the owner's spare file, for whoever has its memory cleared.

        None if there is no room for it.  It counts as spare from now on: what needs room meanwhile goes first.
        """
        reserved_bytes = whole_grains(size_bytes)
        with self._lock:
            file = self._spare_of(owner)
            missing_bytes = reserved_bytes - (0 if file is None else file.reserved_bytes)
            room_bytes = min(self.bound_bytes - self._total_bytes(), self._free_bytes(), self._to_spare_bytes())
            if missing_bytes > max(0, room_bytes):
                return None
            if file is None:
                file = self._new(owner)
                file.is_over = True
                self._spare.append(file)
            if missing_bytes > 0:
                file.resize(reserved_bytes)
            return file.number, os.dup(file.descriptor)  # which stays open if the file is closed meanwhile

    def relieve(self) -> None:
        """Give spare memory back while the node is short of memory."""
        with self._lock:
            while self._spare and self._to_spare_bytes() < 0:
                self._close_oldest()

    def unnamed(self) -> int:
        """Open a new file without a name, which counts as nobody's."""
        if self._folder is not None:
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        descriptor = os.memfd_create("laggard-shard", os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        return descriptor

    def _settle(self, file: ShardFile) -> ShardFile | None:
        """Make a file spare if nobody needs it; return one that is then too many, to be closed without the lock."""
        if not file.is_over or file.readers or file not in self._files or file in self._spare:
            return None
        other = self._spare_of(file.owner)
        surplus = file
        if not file.is_lent and (other is None or other.size_bytes == 0):  # that one's memory may not be there yet
            self._spare.append(file)
            if other is None:
                return None
            surplus = other
        self._remove(surplus)
        return surplus

    def _spare_of(self, owner: str) -> ShardFile | None:
        return next((each for each in self._spare if each.owner == owner), None)

    def _make_room(self, fresh_bytes: int) -> None:
        """Close spare files until fresh memory fits; the bound and the file system both count."""
        while self._spare and (
            self._total_bytes() + fresh_bytes > self.bound_bytes or fresh_bytes > self._free_bytes()
        ):
            self._close_oldest()
        if fresh_bytes > (free_bytes := self._free_bytes()):
            used = self._used_bytes()
            raise NoRoom(used + free_bytes, used, "file system")

    def _new(self, owner: str) -> ShardFile:
        try:
            descriptor = self.unnamed()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise NoRoom(self.bound_bytes, self._used_bytes(), "file system") from error
            raise
        file = ShardFile(next(self._numbers), descriptor, owner)
        self._files.add(file)
        return file

    def _close_oldest(self) -> None:
        file = self._spare[0]
        self._remove(file)
        file.close()

    def _remove(self, file: ShardFile) -> None:
        self._files.discard(file)
        if file in self._spare:
            self._spare.remove(file)

    def _total_bytes(self) -> int:
        return sum(each.reserved_bytes for each in self._files)

    def _used_bytes(self) -> int:
        return self._total_bytes() - sum(each.reserved_bytes for each in self._spare)

    def _free_bytes(self) -> int:
        if self._folder is None:
            return memory_available_bytes()
        free = os.statvfs(self._folder)
        return free.f_bavail * free.f_frsize
