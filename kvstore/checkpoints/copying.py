"""What a shard server holds, and what it does about it: record, copy to peers, forget.

All follows from the record in State: a shard without its record is forgotten; a copy that is not recorded yet is
recorded; one with fewer copies than asked for is sent on by the first node that has one.  So the
same look at a shard serves a new one, one whose copy was lost with its node, and one that is no longer kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from laggard.kvstore.checkpoints.complete import ShardKey, ShardRecord, next_peers
from laggard.kvstore.checkpoints.folder import remove_other_shards, shard_file, write_shard_file
from laggard.kvstore.checkpoints.job import JobView, Situation
from laggard.kvstore.checkpoints.memory import ShardMemory
from laggard.kvstore.checkpoints.peers import Peers, TransferError
from laggard.kvstore.checkpoints.shard_file import ShardFile
from laggard.kvstore.errors import FencedError, KVStoreError, StateFullError

_log = logging.getLogger("laggard.kvstore.checkpoints")

LOOK_INTERVAL_S = 1.0  # a question to the state server each
# A peer that could not take a shard is asked again after this long.
AVOID_S = 15.0
N_WORKERS = 4  # they wait for peers and disks most of the time


@dataclass(eq=False, slots=True)
class Held:
    """A shard in this node's memory."""

    key: ShardKey
    id: str
    file: ShardFile  # its bytes
    sums: bytes  # its checksums
    is_own: bool = False  # whether a program of this node saved it
    is_in_work: bool = False
    next_look: Situation | None = None  # as it was when there was reason for another look meanwhile
    is_settled: bool = False


class Holdings:
    """The shards of one node."""

    def __init__(self, memory: ShardMemory, job: JobView, peers: Peers, directory: Path | None) -> None:
        self._memory = memory  # where they are
        self._job = job  # what State knows of them, and which servers there are
        self._peers = peers  # connections to the others
        self._directory = directory  # shared directory for a further copy; None: there is none
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}  # by their ids
        self._asked = threading.Event()
        self._avoided: dict[str, float] = {}
        self._told: set[str] = set()
        self._workers = ThreadPoolExecutor(N_WORKERS, "copies")
        self.changed = threading.Condition()

    @contextmanager
    def adding(self, held: Held) -> Iterator[None]:
        """Hold a shard from now on, and look at it when the block has ended, by when it has its record or gets none."""
        held.is_in_work = True
        with self._lock:
            before = self._held.get(held.id)
            self._held[held.id] = held
        if before is not None:  # it was sent twice at once
            self._memory.give_back(before.file)
        try:
            yield
        finally:
            with self._lock:
                held.is_in_work, held.next_look = False, None
            self.look()

    def add_copy(self, held: Held) -> None:
        """Hold a copy that a peer has sent, and record it."""
        if self.find(held.id) is not None:  # it was sent twice
            self._memory.give_back(held.file)
            return
        with self.adding(held):
            try:
                self._record_copy(held)
            except FencedError:  # it is no longer wanted, which its sender sees too
                self._forget(held)
            except (KVStoreError, redis.RedisError, OSError) as error:  # the look tries again
                _log.warning("%s: %s", held.key.record, error)

    def find(self, shard_id: str) -> Held | None:
        """Return a shard, if it is here."""
        with self._lock:
            return self._held.get(shard_id)

    def is_waiting(self) -> bool:
        """Return whether there are shards that do not have all their copies yet."""
        with self._lock:
            return any(not held.is_settled for held in self._held.values())

    def keep_looking(self) -> None:
        """Look at the shards whenever there is reason to, for ever."""
        before = None
        while True:
            is_asked = self._asked.wait(LOOK_INTERVAL_S)
            self._asked.clear()
            try:
                self._memory.relieve()
                now = self._job.situation()
                if is_asked or now != before or self.is_waiting():
                    self._look(now)
                if now != before:
                    self._sweep_directory(now)
                before = now
            except (KVStoreError, redis.RedisError, OSError) as error:  # the state server is being restarted
                _log.warning("the situation of the job cannot be read: %s", error)

    def look(self) -> None:
        """Have all shards looked at, at once; one that is being worked on afterwards."""
        self._asked.set()

    def _look(self, now: Situation) -> None:
        with self._lock:
            due = [held for held in reversed(self._held.values()) if not held.is_in_work]  # the newest first
            for held in self._held.values():
                held.next_look, held.is_in_work = now if held.is_in_work else None, True
        for held in due:
            self._workers.submit(self._work_on, held, now)

    def _work_on(self, held: Held, now: Situation) -> None:
        try:
            held.is_settled = self._tend(held, now)
        except FencedError:
            self._forget(held)  # its launch is over, and it did not get its copies in time
        except (KVStoreError, redis.RedisError, OSError) as error:  # the next look tries again
            held.is_settled = False
            _log.warning("%s: %s", held.key.record, error)
        except Exception:
            held.is_settled = False
            _log.exception("%s cannot be worked on", held.key.record)
            raise
        finally:
            with self._lock:
                again = held.next_look if self._held.get(held.id) is held else None
                held.next_look = None
                held.is_in_work = again is not None
            if again is not None:
                self._workers.submit(self._work_on, held, again)
            with self.changed:
                self.changed.notify_all()

    def _tend(self, held: Held, now: Situation) -> bool:
        """Do what is to be done about a shard; return whether that is all."""
        record = self._job.record(held.key, now.launch)
        if record is None or record.id != held.id:
            self._forget(held)
            return True
        with self._memory.reading(held.file) as file:
            if file is None:
                return True
            content = file.content()
            if record.copies.get(self._job.host) != self._job.server:
                record = self._record_copy(held)
            done = self._send_on(held, record, content, now)
            if record.directory and not record.in_directory and self._is_first(record, now):
                self._write_to_directory(held, content)
        return done

    def _record_copy(self, held: Held) -> ShardRecord:
        host, server = self._job.host, self._job.server
        return self._job.change_record(
            held.key, held.id, lambda record: replace(record, copies={**record.copies, host: server})
        )

    def _is_first(self, record: ShardRecord, now: Situation) -> bool:
        """Return whether this is the one of the servers with a copy that sees to the others."""
        return record.holders(now.ids())[:1] == [self._job.host]

    def _send_on(self, held: Held, record: ShardRecord, content: memoryview, now: Situation) -> bool:
        servers, holders = now.servers, record.holders(now.ids())
        missing = min(record.asked, len(servers)) - len(holders)
        if missing <= 0 or not self._is_first(record, now):
            return len(holders) >= record.asked
        hosts = [host for host in self._job.ring(now.launch) if host in servers]
        for host in self._willing(next_peers(self._job.host, hosts, holders)):
            try:
                self._peers.put(servers[host], held.key.record, held.id, held.sums, content)
            except (TransferError, OSError) as error:
                self._avoid(host, held, error)
            else:
                missing -= 1
                if missing == 0:
                    return True
        return False

    def _willing(self, hosts: list[str]) -> list[str]:
        """Leave out those that could not take a shard a moment ago."""
        now_s = time.monotonic()
        return [host for host in hosts if self._avoided.get(host, now_s) <= now_s]

    def _avoid(self, host: str, held: Held, error: Exception) -> None:
        _log.warning("%s has taken no copy of %s: %s", host, held.key.record, error)
        self._avoided[host] = time.monotonic() + AVOID_S
        if host not in self._told:
            self._told.add(host)
            self._job.tell(f"{host} took no copy of a checkpoint from {self._job.host}: {error}; others are asked")

    def _write_to_directory(self, held: Held, content: memoryview) -> None:
        if self._directory is None:
            return
        try:
            write_shard_file(self._directory, held.id, content, held.sums)
        except (StateFullError, OSError) as error:
            # The copies in memory are worth more than none that counts; the next checkpoint is tried again.
            self._job.change_record(held.key, held.id, lambda record: replace(record, directory=False))
            self._tell_of_directory(self._directory, error)
        else:
            self._job.change_record(held.key, held.id, lambda record: replace(record, in_directory=True))

    def _tell_of_directory(self, directory: Path, error: StateFullError | OSError) -> None:
        reason = error.reason if isinstance(error, StateFullError) else str(error.strerror)
        _log.warning("%s cannot be written to: %s", directory, reason)
        self._job.tell_for_all(
            f"{self._job.host} cannot write checkpoints to {directory}: {reason}; until that is mended, new ones are "
            "only in the memory of the nodes",
            f"directory: {reason}",
        )

    def _sweep_directory(self, now: Situation) -> None:
        """Remove files of checkpoints that are no longer kept, whose servers were lost before they did."""
        if self._directory is not None and self._job.ring(now.launch)[:1] == [self._job.host]:
            remove_other_shards(self._directory, self._job.ids)

    def _forget(self, held: Held) -> None:
        if self._directory is not None and held.is_own:
            shard_file(self._directory, held.id).unlink(missing_ok=True)
        with self._lock:
            if self._held.get(held.id) is not held:
                return
            del self._held[held.id]
        self._memory.give_back(held.file)
