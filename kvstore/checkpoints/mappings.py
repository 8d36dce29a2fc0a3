"""Memory of the node that a program has mapped to write its shards to: what it has written before, and the next one.

To copy into memory that is mapped takes a third of the time of a write to the same file, and a tenth of that to fresh
memory.  So a thread has the next shard's memory cleared and mapped before the program saves it.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_digest

from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, LeafDigests, Plan
from laggard.kvstore.checkpoints.populate import SLICE_BYTES, populate
from laggard.kvstore.checkpoints.shard_file import write_at
from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.values.decoding import Buffer

# A save takes this share of the processors, and several ranks of a node save at once.
_PROCESSORS_PER_THREAD = 4
_MAX_THREADS = 4  # more are no faster: docs/benchmarks/checkpoints.md
_LARGE_BYTES = 64 << 10  # to read a smaller leaf again for its digest costs less than to compute it piece by piece
# Of the thread that clears memory, as `nice` counts: ranks and copies come first.
_LOW_PRIORITY = 10
_log = logging.getLogger("laggard.kvstore")


@dataclass(slots=True)
class _Mapped:
    """A file that is mapped."""

    mapping: mmap.mmap
    ready_bytes: int = 0  # how much of it has memory; to touch the rest ends a process if there is none left
    # How much of that is in this process's page tables. To copy to the rest takes three times as long
    at_hand_bytes: int = 0


class Mappings:
    """What a process has mapped to write to it, by the files' numbers. From any thread."""

    def __init__(
        self, prepare: Callable[[str, int], tuple[int, int] | None], tell: Callable[[int, OSError], None]
    ) -> None:
        # Called in a thread with an owner and a size: returns the number of its next file and a descriptor, to be
        # closed; None if there is no room for it
        self._prepare = prepare
        self._tell = tell  # called once in that thread, when there is no memory for a size
        self._has_told = False
        self._mapped: dict[int, _Mapped] = {}
        self._given_up: list[_Mapped] = []
        self._lock = threading.RLock()  # a signal handler may save too
        self._wanted: dict[str, int] = {}  # sizes by owner
        self._written: list[tuple[int, int]] = []  # files to be put at hand for the next time, and their descriptors
        self._thread: threading.Thread | None = None

    def write(self, plan: Plan, number: int, descriptor: int, reserved_bytes: int) -> bytes:
        """Copy a shard into a file, and have it mapped from then on; return its checksums."""
        with self._lock:
            mapped = self._mapped.get(number)
        sums = write_parts(plan, descriptor, *((None, 0) if mapped is None else (mapped.mapping, mapped.ready_bytes)))
        before, mapped = mapped, self._map(number, descriptor, reserved_bytes)
        if mapped is before:  # what was copied through it
            mapped.at_hand_bytes = max(mapped.at_hand_bytes, min(mapped.ready_bytes, plan.size_bytes))
        mapped.ready_bytes = max(mapped.ready_bytes, plan.size_bytes)
        if mapped.at_hand_bytes < plan.size_bytes:
            with self._lock:
                self._written.append((number, os.dup(descriptor)))
        return sums

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Give all others up. The thread unmaps them: their memory may be free only then, which takes its time."""
        kept = set(numbers)
        with self._lock:
            self._given_up += [mapped for number, mapped in self._mapped.items() if number not in kept]
            self._mapped = {number: mapped for number, mapped in self._mapped.items() if number in kept}

    def want(self, owner: str, size_bytes: int) -> None:
        """Have memory for an owner's next shard, which will be about as large, cleared and mapped in the background."""
        with self._lock:
            self._wanted[owner] = size_bytes
            if self._thread is not None and self._thread.is_alive():  # it is not, in a forked process
                return
            self._thread = threading.Thread(target=self._map_ahead, name="laggard memory", daemon=True)
            self._thread.start()

    def _map_ahead(self) -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), _LOW_PRIORITY))
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                owner = next(iter(self._wanted))
                size_bytes = self._wanted.pop(owner)
                given_up, self._given_up = self._given_up, []
                written, self._written = self._written, []
            del given_up
            try:
                while (found := self._prepare(owner, size_bytes)) and not self._is_populated(*found):
                    pass  # another shard has got its memory, or one that has come back is spare in its place
            except (KVStoreError, OSError, ValueError) as error:  # a save goes into fresh memory
                _log.debug("no memory is ready for the next checkpoint of %s: %s", owner, error)
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM) and not self._has_told:
                    self._has_told = True
                    self._tell(size_bytes, error)
            for number, descriptor in written:
                with suppress(OSError):  # what is not at hand is slower, no more
                    self._is_populated(number, descriptor)

    def _is_populated(self, number: int, descriptor: int) -> bool:
        """Have the memory of a file; return False if the file has been closed meanwhile."""
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes == 0:
                return False
            mapped = self._map(number, descriptor, size_bytes)
            for at in range(mapped.at_hand_bytes // SLICE_BYTES * SLICE_BYTES, size_bytes, SLICE_BYTES):
                end = min(at + SLICE_BYTES, size_bytes)
                try:
                    populate(descriptor, mapped.mapping, at, end)
                except OSError:
                    if os.fstat(descriptor).st_size < size_bytes:
                        return False
                    raise
                mapped.ready_bytes = max(mapped.ready_bytes, end)
                mapped.at_hand_bytes = end
                if self._mapped.get(number) is not mapped:  # it was given up: its server has ended
                    return False
        finally:
            os.close(descriptor)
        return True

    def _map(self, number: int, descriptor: int, size_bytes: int) -> _Mapped:
        """Return a file, mapped to this size at least."""
        with self._lock:
            mapped = self._mapped.get(number)
            if mapped is None or len(mapped.mapping) < size_bytes:
                ready_bytes = 0 if mapped is None else mapped.ready_bytes
                mapped = self._mapped[number] = _Mapped(mmap.mmap(descriptor, size_bytes), ready_bytes)
            return mapped


def write_parts(plan: Plan, descriptor: int, mapping: mmap.mmap | None, ready_bytes: int) -> bytes:
    """Copy a shard into a file, through its mapping what has memory, the rest by writing; return its checksums."""
    # Writing fails where there is no memory; to touch a mapping would end the process.
    mapped = np.frombuffer(mapping or b"", np.uint8)[:ready_bytes]

    def write_blocks(starts: range) -> bytes:
        sums, leaves = [], _Leaves(plan.digests)
        for start in starts:
            stop = min(start + BLOCK_BYTES, plan.size_bytes)
            target = mapped[start:stop] if stop <= mapped.size else np.zeros(stop - start, np.uint8)
            for part, where, source in plan.within(start, target):
                np.copyto(where, source)  # without the GIL
                leaves.add(part, where)
            if stop > mapped.size:
                write_at(descriptor, start, target.data)
            sums.append(xxh3_64_digest(target.data))  # which the processor's cache still has
        return b"".join(sums)

    starts = range(0, plan.size_bytes, BLOCK_BYTES)
    n_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)) // _PROCESSORS_PER_THREAD, len(starts))
    if n_threads < 2:
        return write_blocks(starts)
    per_thread = -(-len(starts) // n_threads)
    with ThreadPoolExecutor(n_threads, "copy") as threads:
        runs = (starts[first : first + per_thread] for first in range(0, len(starts), per_thread))
        return b"".join(threads.map(write_blocks, runs))


class _Leaves:
    """Computes the digests of those large leaves that one thread copies from their first byte to their last."""

    def __init__(self, digests: LeafDigests | None) -> None:
        self._digests = digests  # where to note them; None: nobody wants them
        self._begun: dict[int, tuple[xxh3_64, int]] = {}  # by leaf: of how many bytes

    def add(self, leaf: Buffer, piece: NDArray[np.uint8]) -> None:
        """Add what has just been copied of a leaf."""
        if self._digests is None or len(leaf) < _LARGE_BYTES:
            return
        digest, n_bytes = self._begun.get(id(leaf)) or (xxh3_64(), 0)
        digest.update(piece.data)
        self._begun[id(leaf)] = digest, n_bytes + piece.size
        if n_bytes + piece.size == len(leaf):
            self._digests.note(leaf, digest.digest())
