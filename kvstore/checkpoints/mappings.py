"""Memory of the node that a program has mapped to write its shards to: what it has written before, and the next one.

To copy into memory that is mapped takes a third of the time of a write to the same file, and a tenth of that to fresh
memory.  So a thread has the next shard's memory mapped before the program saves it.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.checkpoints.connecting import Wanted
from laggard.kvstore.checkpoints.layout import BLOCK_BYTES, Plan
from laggard.kvstore.checkpoints.populate import SLICE_BYTES, populate
from laggard.kvstore.errors import KVStoreError

# A save takes this share of the processors, and several ranks of a node save at once.
_PROCESSORS_PER_THREAD = 4
# For how many shards of an owner to have memory: that of the second is made before copies of the first take processors.
N_AHEAD = 2
_MAX_THREADS = 4
_PIECE_BYTES = 32 << 20
_log = logging.getLogger("laggard.kvstore")


class Mappings:
    """What a process has mapped to write to it, by the files' numbers. From any thread."""

    def __init__(self, prepare: Callable[[Wanted], tuple[int, int] | None]) -> None:
        # Called in a thread: has a file ready, and returns its number and a descriptor, to be closed; None if there is
        # no memory for it, or none is needed
        self._prepare = prepare
        self._mapped: dict[int, mmap.mmap] = {}
        self._given_up: list[mmap.mmap] = []
        self._lock = threading.RLock()  # a signal handler may save too
        self._wanted: dict[tuple[int, str], Wanted] = {}
        self._thread: threading.Thread | None = None

    def find(self, number: int) -> mmap.mmap | None:
        """Return what is mapped of a file."""
        with self._lock:
            return self._mapped.get(number)

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Give all others up. The thread unmaps them: their memory may be free only then, which takes its time."""
        kept = set(numbers)
        with self._lock:
            self._given_up += [mapping for number, mapping in self._mapped.items() if number not in kept]
            self._mapped = {number: mapping for number, mapping in self._mapped.items() if number in kept}

    def add(self, number: int, descriptor: int, size_bytes: int) -> mmap.mmap:
        """Map a file, in place of what was mapped of it."""
        mapping = mmap.mmap(descriptor, size_bytes)
        with self._lock:
            self._mapped[number] = mapping
        return mapping

    def want(self, owner: str, size_bytes: int, n_files: int) -> None:
        """Have memory for the next two shards of an owner mapped, in the background; the next ones of all come first.

        Parameters
        ----------
        owner, size_bytes
            Whose, and about how large they will be.
        n_files
            How many files the owner uses in turn; as long as it has fewer, the second one is new.
        """
        with self._lock:
            for ahead in range(N_AHEAD):
                self._wanted[ahead, owner] = Wanted(owner, size_bytes, ahead, n_files)
            if self._thread is not None and self._thread.is_alive():  # it is not, in a forked process
                return
            self._thread = threading.Thread(target=self._map_ahead, name="laggard memory", daemon=True)
            self._thread.start()

    def _map_ahead(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                wanted = self._wanted.pop(min(self._wanted))
                given_up, self._given_up = self._given_up, []
            del given_up
            try:
                found = self._prepare(wanted)
                if found is not None:
                    self._map(*found)
            except (KVStoreError, OSError, ValueError) as error:  # a save goes into fresh memory
                _log.debug("no memory is ready for the next checkpoint of %s: %s", wanted.owner, error)

    def _map(self, number: int, descriptor: int) -> None:
        try:
            size_bytes = os.fstat(descriptor).st_size
            mapping = self.find(number)
            if mapping is None or len(mapping) < size_bytes:
                mapping = self.add(number, descriptor, size_bytes)
        finally:
            os.close(descriptor)
        for at in range(0, size_bytes, SLICE_BYTES):
            populate(mapping, at, min(at + SLICE_BYTES, size_bytes))


def write_parts(plan: Plan, descriptor: int, mapping: mmap.mmap | None, ready_bytes: int) -> None:
    """Copy a shard into a file: through its mapping what has memory, the rest by writing."""
    # Writing fails where there is no memory; to touch a mapping would end the process.
    mapped_bytes = 0 if mapping is None else min(ready_bytes, len(mapping))
    _copy_mapped(plan, np.frombuffer(mapping or b"", np.uint8)[:mapped_bytes])
    for at, part in plan.parts:
        start = max(at, mapped_bytes)
        _write(descriptor, start, memoryview(part)[start - at :])


def _copy_mapped(plan: Plan, target: NDArray[np.uint8]) -> None:
    """Copy what is within the target, in several threads if there are processors for them."""
    pieces = [
        (target[at + start : at + start + _PIECE_BYTES], np.frombuffer(part, np.uint8)[start : start + _PIECE_BYTES])
        for at, part in plan.parts
        for start in range(0, min(len(part), target.size - at), _PIECE_BYTES)
    ]
    n_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)) // _PROCESSORS_PER_THREAD, len(pieces))
    if n_threads < 2:
        for piece in pieces:
            _copy(piece)
    else:
        with ThreadPoolExecutor(n_threads, "copy") as threads:
            for _ in threads.map(_copy, pieces):
                pass


def _copy(piece: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    target, source = piece
    size = min(target.size, source.size)
    np.copyto(target[:size], source[:size])  # without the GIL


def _write(descriptor: int, at: int, content: memoryview) -> None:
    while content.nbytes:
        count = os.pwrite(descriptor, content[:BLOCK_BYTES], at)
        at, content = at + count, content[count:]
