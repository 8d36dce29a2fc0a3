"""The memory of a node that holds shards: files without a name, within a bound.

A file without a name exists as long as a process has it open: when the shard server and the program have ended, however
they ended, the kernel frees its memory.  A file that is no longer needed is used again for another shard, since fresh
memory costs several times what it takes to copy into memory that has been used before.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from laggard.kvstore.checkpoints.bounds import memory_to_spare_bytes
from laggard.kvstore.checkpoints.populate import SLICE_BYTES, allocate
from laggard.kvstore.checkpoints.shard_file import ShardFile, whole_grains
from laggard.system.memory import memory_available_bytes


class NoRoom(Exception):  # noqa: N818 - says why, to the server, which tells the program
    """A shard does not fit."""

    def __init__(self, bound_bytes: int, used_bytes: int, reason: str) -> None:
        super().__init__(bound_bytes, used_bytes, reason)
        self.bound_bytes = bound_bytes  # how much there may be, and how much of that cannot be freed
        self.used_bytes = used_bytes
        self.reason = reason  # whose limit it is: `bound` or `file system`


def may_be_new(n_spare: int, n_in_turn: int, ahead: int, n_files: int) -> bool:
    """Return whether an owner gets fresh memory for a shard."""
    # If there is none for the next shard, the save would go into fresh memory itself.
    return ahead == n_spare and (ahead == 0 or n_in_turn < n_files)


class ShardMemory:
    """All shards that a node holds. From any thread."""

    def __init__(
        self,
        folder: Path | None,
        bound_bytes: int,
        to_spare_bytes: Callable[[], int] = memory_to_spare_bytes,
        allocate_slice: Callable[[int, mmap.mmap, int, int], None] = allocate,
    ) -> None:
        self._allocate_slice = allocate_slice
        # On a file system in memory; None: there is none of a useful size, and the kernel's own is used
        self._folder = folder
        self.bound_bytes = bound_bytes  # how much of it to use at most, the spare files included
        # Returns how much more memory the node can do without; below 0 it is short of memory
        self._to_spare_bytes = to_spare_bytes
        # A program may have files of a server that was killed mapped, and must not take ours for them.
        self._numbers = itertools.count(secrets.randbits(40) << 20)
        self._lock = threading.Lock()
        self._files: set[ShardFile] = set()  # the spare ones included
        self._spare: list[ShardFile] = []
        self._in_preparation: dict[ShardFile, int] = {}  # with the descriptor that the preparation has of it
        self._n_files: dict[str, int] = {}  # that owners use in turn, as far as they have said so

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
        """Return a file of this size for a new shard."""
        reserved_bytes = whole_grains(size_bytes)
        with self._lock:
            if self._used_bytes() + reserved_bytes > self.bound_bytes:
                raise NoRoom(self.bound_bytes, self._used_bytes(), "bound")
            file = self._spare_for(reserved_bytes, owner) or self._new(owner)
            try:
                self._make_room(reserved_bytes - file.reserved_bytes)
                file.resize(reserved_bytes)
            except (NoRoom, OSError):
                self._close(file)
                raise
            file.size_bytes, file.owner = size_bytes, owner
            file.is_ahead = file.is_over = False
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
                    surplus = self._settle(file)
                if surplus is not None:
                    surplus.close()

    def lend(self, file: ShardFile) -> None:
        """Note that a program maps a file to read it."""
        with self._lock:
            file.is_lent = True

    def prepare(self, size_bytes: int, owner: str, ahead: int, n_files: int) -> tuple[ShardFile, int] | None:
        """Have a spare file of this size whose memory is there; takes as long as fresh memory takes."""
        # What needs memory meanwhile goes first: it takes the file, as far as it is, or its memory. A file of the owner
        # that comes back meanwhile takes its place.
        reserved_bytes = whole_grains(size_bytes)
        with self._lock:
            self._n_files[owner] = n_files
            file = self._to_prepare(reserved_bytes, owner, ahead)
            if file is None:
                return None
            file.is_over = file.is_ahead = True
            descriptor = os.dup(file.descriptor)  # which stays open if the file is closed meanwhile
            self._in_preparation[file] = descriptor
        try:
            self._allocate(file, descriptor, reserved_bytes)
        except BaseException as error:
            with self._lock:
                was_taken = self._in_preparation.get(file) != descriptor
                if not was_taken:
                    self._close(file)
            if not was_taken or not isinstance(error, (OSError, ValueError)):  # it may be shorter now
                os.close(descriptor)
                raise
        surplus = None
        with self._lock:
            if self._in_preparation.get(file) == descriptor:
                del self._in_preparation[file]
                surplus = self._settle(file)
            is_replaced = file not in self._files and len(self._spare_of(owner)) > ahead
        if surplus is not None:
            surplus.close()
        if is_replaced:
            os.close(descriptor)
            return self.prepare(size_bytes, owner, ahead, n_files)
        return file, descriptor

    def relieve(self) -> None:
        """Give spare memory back while the node is short of memory."""
        with self._lock:
            while self._idle() and self._to_spare_bytes() < 0:
                self._close(self._least_needed())

    def _to_prepare(self, reserved_bytes: int, owner: str, ahead: int) -> ShardFile | None:
        """Return a spare or a new file, at least as long; None if the owner has enough or there is no room."""
        if any(each.owner == owner for each in self._in_preparation):
            return None
        own = self._spare_of(owner)
        found = own[ahead] if ahead < len(own) else None
        if found is None and not may_be_new(len(own), self._n_in_turn(owner), ahead, self._n_files[owner]):
            return None
        known_bytes, ready_bytes = (0, 0) if found is None else (found.reserved_bytes, found.ready_bytes)
        if self._total_bytes() + max(0, reserved_bytes - known_bytes) > self.bound_bytes:
            return None
        missing_bytes = reserved_bytes - ready_bytes
        if missing_bytes > 0 and missing_bytes > min(self._free_bytes(), self._to_spare_bytes()):
            return None
        if found is None:
            found = self._new(owner)
        else:
            self._spare.remove(found)
        if found.reserved_bytes < reserved_bytes:
            found.resize(reserved_bytes)
        return found

    def _spare_of(self, owner: str) -> list[ShardFile]:
        """Return the spare files of an owner, in the order in which it will use them."""
        own = [each for each in self._spare if each.owner == owner]
        return sorted(own, key=lambda each: (-each.ready_bytes, each.number))

    def _n_in_turn(self, owner: str) -> int:
        """Return how many files an owner has that it will write again."""
        return sum(each.owner == owner and not each.is_lent for each in self._files)

    def _allocate(self, file: ShardFile, descriptor: int, stop: int) -> None:
        """Have the memory of a file in preparation, slice by slice, until somebody takes it or it is not needed."""
        with mmap.mmap(descriptor, stop) as mapping:
            for at in range(file.ready_bytes // SLICE_BYTES * SLICE_BYTES, stop, SLICE_BYTES):
                end = min(at + SLICE_BYTES, stop)
                self._allocate_slice(descriptor, mapping, at, end)
                with self._lock:
                    if self._in_preparation.get(file) != descriptor:
                        return
                    file.ready_bytes = max(file.ready_bytes, end)

    def _settle(self, file: ShardFile) -> ShardFile | None:
        """Make a file spare if nobody needs it; return one that is then too many, to be closed without the lock."""
        if not file.is_over or file.readers or file not in self._files or file in self._spare:
            return None
        if file.is_lent:
            surplus: ShardFile | None = file
        else:
            self._spare.append(file)
            surplus = self._surplus(file)
        if surplus is not None:
            self._remove(surplus)
        return surplus

    def _surplus(self, latest: ShardFile) -> ShardFile | None:
        """Return the owner's idle file with the least memory if it has more files than it uses in turn."""
        own = [each for each in self._idle() if each.owner == latest.owner]
        n_in_turn = self._n_in_turn(latest.owner)
        if len(own) < 2 or n_in_turn <= self._n_files.get(latest.owner, n_in_turn):
            return None
        return min(own, key=lambda each: (each.ready_bytes, each is not latest))

    def _spare_for(self, reserved_bytes: int, owner: str) -> ShardFile | None:
        """Take the spare file that fits best: one of the same owner, of the nearest size."""
        # What another owner has mapped for its next shards is taken only where there is no room for more, from who has
        # most of that.
        own = [each for each in self._idle() if each.owner == owner]
        others = [each for each in self._spare if each.owner != owner]
        if self._total_bytes() + reserved_bytes <= self.bound_bytes and reserved_bytes <= self._free_bytes():
            others = [each for each in others if not each.is_ahead]
        candidates = own or others
        if not candidates:
            return None
        if not own:
            least = min(self._need(each) for each in others)
            candidates = [each for each in others if self._need(each) == least]
        best = min(
            candidates, key=lambda each: (abs(each.reserved_bytes - reserved_bytes), -each.ready_bytes, each.number)
        )
        self._no_longer_idle(best)
        return best

    def _make_room(self, fresh_bytes: int) -> None:
        """Close spare files until fresh memory fits; the bound and the file system both count."""
        while self._idle() and (
            self._total_bytes() + fresh_bytes > self.bound_bytes or fresh_bytes > self._free_bytes()
        ):
            self._close(self._least_needed())
        if fresh_bytes > (free_bytes := self._free_bytes()):
            used = self._used_bytes()
            raise NoRoom(used + free_bytes, used, "file system")

    def _least_needed(self) -> ShardFile:
        """Return the idle file to be closed first."""
        return min(self._idle(), key=lambda each: (self._need(each), each not in self._in_preparation))

    def _need(self, file: ShardFile) -> tuple[bool, int]:
        """Return how much its owner would miss an idle file: less if it has another one ready."""
        n_ahead = sum(each.is_ahead and each.owner == file.owner for each in self._idle())
        return file.is_ahead, -n_ahead

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

    def unnamed(self) -> int:
        """Open a new file without a name, which counts as nobody's."""
        if self._folder is not None:
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        descriptor = os.memfd_create("laggard-shard", os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        return descriptor

    def _close(self, file: ShardFile) -> None:
        self._remove(file)
        file.close()

    def _remove(self, file: ShardFile) -> None:
        self._no_longer_idle(file)
        self._files.discard(file)

    def _no_longer_idle(self, file: ShardFile) -> None:
        self._in_preparation.pop(file, None)
        if file in self._spare:
            self._spare.remove(file)

    def _total_bytes(self) -> int:
        return sum(each.reserved_bytes for each in self._files)

    def _used_bytes(self) -> int:
        return self._total_bytes() - sum(each.reserved_bytes for each in self._idle())

    def _idle(self) -> list[ShardFile]:
        return [*self._spare, *self._in_preparation]

    def _free_bytes(self) -> int:
        if self._folder is None:
            return memory_available_bytes()
        free = os.statvfs(self._folder)
        return free.f_bavail * free.f_frsize
