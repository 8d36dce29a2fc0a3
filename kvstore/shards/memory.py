"""The memory of a node that holds shards: files without a name, within a bound.

A file without a name exists as long as a process has it open: when the shard server and the program have ended, however
they ended, the kernel frees its memory.  A file that is no longer needed is used again for another shard, since fresh
memory costs several times what it takes to copy into memory that has been used before.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from laggard.kvstore.codec import Buffer
from laggard.kvstore.memory import memory_limit_bytes

__all__ = ["MEMORY_FOLDER", "NoRoom", "ShardFile", "ShardMemory", "default_memory"]

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - the files in it have no names
# Of the memory file system's size, and of the machine's: the program and others need some too.
_SHARE_OF_FOLDER = 0.8
_SHARE_OF_MACHINE = 0.5
# Containers often have one of 64 MB, which is of no use here.
_LEAST_FOLDER = 0.1


class NoRoom(Exception):  # noqa: N818 - says why, to the server, which tells the program
    """A shard does not fit.

    Attributes
    ----------
    bound_bytes, used_bytes
        How much there may be, and how much of that cannot be freed.
    reason
        Whose limit it is: ``bound`` or ``file system``.
    """

    def __init__(self, bound_bytes: int, used_bytes: int, reason: str) -> None:
        super().__init__(bound_bytes, used_bytes, reason)
        self.bound_bytes = bound_bytes
        self.used_bytes = used_bytes
        self.reason = reason


@dataclass(eq=False, slots=True)
class ShardFile:
    """A file without a name.

    Attributes
    ----------
    number
        Tells it from others of this server.
    descriptor
        Open for reading and writing.
    size_bytes
        Its size.
    owner
        Who wrote it last; whoever wrote a file may still have it mapped.
    is_lent
        Whether a program may have it mapped to read it; then it is never written again.
    readers
        How many threads of this process are reading it.
    is_over
        Whether it goes back as soon as they are done.
    """

    number: int
    descriptor: int
    size_bytes: int
    owner: str
    is_lent: bool = False
    readers: int = 0
    is_over: bool = False

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of its bytes."""
        return os.pread(self.descriptor, stop - start, start)

    def write(self, offset: int, content: Buffer) -> None:
        """Write at an offset."""
        view = memoryview(content)
        while view.nbytes:
            count = os.pwrite(self.descriptor, view, offset)
            offset, view = offset + count, view[count:]


class ShardMemory:
    """All shards that a node holds. From any thread.

    Parameters
    ----------
    folder
        On a file system in memory; None: there is none of a useful size, and the kernel's own is used.
    bound_bytes
        How much of it to use at most.
    """

    def __init__(self, folder: Path | None, bound_bytes: int) -> None:
        self._folder = folder
        self.bound_bytes = bound_bytes
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._files: set[ShardFile] = set()  # the spare ones included
        self._spare: list[ShardFile] = []
        self._in_preparation: set[ShardFile] = set()

    @property
    def used_bytes(self) -> int:
        """Size of the shards, without what is spare."""
        with self._lock:
            return self._used_bytes()

    def numbers(self) -> list[int]:
        """Return the numbers of all files there are, the spare ones included."""
        with self._lock:
            return sorted(file.number for file in self._files)

    def take(self, size_bytes: int, owner: str) -> ShardFile:
        """Return a file of this size for a new shard.

        Raises
        ------
        NoRoom
            If it does not fit; everything is as before but for spare memory.
        """
        with self._lock:
            if self._used_bytes() + size_bytes > self.bound_bytes:
                raise NoRoom(self.bound_bytes, self._used_bytes(), "bound")
            file = self._spare_for(size_bytes, owner) or self._new(owner)
            try:
                self._make_room(size_bytes - file.size_bytes)
            except NoRoom:
                self._close(file)
                raise
            os.ftruncate(file.descriptor, size_bytes)
            file.size_bytes, file.owner = size_bytes, owner
            return file

    def give_back(self, file: ShardFile) -> None:
        """Keep a file that is no longer needed as a spare one, unless somebody may still read it."""
        with self._lock:
            file.is_over = True
            self._settle(file)

    @contextmanager
    def reading(self, file: ShardFile) -> Iterator[ShardFile | None]:
        """Keep a file from being written again during a block; None if it is over already."""
        with self._lock:
            if file.is_over:
                found = None
            else:
                found = file
                file.readers += 1
        try:
            yield found
        finally:
            if found is not None:
                with self._lock:
                    file.readers -= 1
                    self._settle(file)

    def lend(self, file: ShardFile) -> None:
        """Note that a program maps a file to read it."""
        with self._lock:
            file.is_lent = True

    def prepare(self, size_bytes: int, owner: str) -> None:
        """Have a spare file of this size ready, if there is room for it; takes as long as fresh memory takes."""
        with self._lock:
            if any(each.owner == owner and each.size_bytes >= size_bytes for each in self._idle()):
                return
            total = sum(each.size_bytes for each in self._files)
            if total + size_bytes > self.bound_bytes or size_bytes > self._free_bytes():
                return
            file = self._new(owner)
            file.size_bytes, file.is_over = size_bytes, True
            self._in_preparation.add(file)
        try:
            os.posix_fallocate(file.descriptor, 0, size_bytes)
            is_there = True
        except OSError:
            is_there = False  # the file system is full
        with self._lock:
            self._in_preparation.remove(file)
            if is_there and sum(each.size_bytes for each in self._files) <= self.bound_bytes:
                self._settle(file)
            else:
                self._close(file)

    def _settle(self, file: ShardFile) -> None:
        if not file.is_over or file.readers or file not in self._files or file in self._spare:
            return
        if file.is_lent:
            self._close(file)
        else:
            self._spare.append(file)

    def _spare_for(self, size_bytes: int, owner: str) -> ShardFile | None:
        """Take the spare file that fits best: one of the same owner, of the nearest size."""
        if not self._spare:
            return None
        best = min(self._spare, key=lambda each: (each.owner != owner, abs(each.size_bytes - size_bytes)))
        self._spare.remove(best)
        best.is_over = False
        return best

    def _make_room(self, fresh_bytes: int) -> None:
        """Close spare files until fresh memory fits; the bound and the file system both count."""
        while self._spare and (
            sum(each.size_bytes for each in self._files) + fresh_bytes > self.bound_bytes
            or fresh_bytes > self._free_bytes()
        ):
            self._close(self._spare.pop())
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
        file = ShardFile(next(self._numbers), descriptor, 0, owner)
        self._files.add(file)
        return file

    def unnamed(self) -> int:
        """Open a new file without a name, which counts as nobody's."""
        if self._folder is not None:
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        descriptor = os.memfd_create("laggard-shard", os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        return descriptor

    def _close(self, file: ShardFile) -> None:
        self._files.discard(file)
        os.close(file.descriptor)

    def _used_bytes(self) -> int:
        return sum(each.size_bytes for each in self._files) - sum(each.size_bytes for each in self._idle())

    def _idle(self) -> list[ShardFile]:
        return [*self._spare, *self._in_preparation]

    def _free_bytes(self) -> int:
        if self._folder is None:
            return int(psutil.virtual_memory().available)
        free = os.statvfs(self._folder)
        return free.f_bavail * free.f_frsize


def default_memory(folder: Path, sharers: int) -> tuple[Path | None, int]:
    """Return where to have shards, and how much of it to use, if several nodes share this machine.

    Parameters
    ----------
    folder
        Of the file system in memory.
    sharers
        How many nodes.
    """
    machine_bytes = memory_limit_bytes()
    whole = os.statvfs(folder)
    folder_bytes = whole.f_blocks * whole.f_frsize
    if folder_bytes < _LEAST_FOLDER * machine_bytes:
        return None, int(_SHARE_OF_MACHINE * machine_bytes / sharers)
    return folder, int(min(_SHARE_OF_FOLDER * folder_bytes, _SHARE_OF_MACHINE * machine_bytes) / sharers)
