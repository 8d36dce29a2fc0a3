"""What a shard server holds, and what it does about it: verify, record, copy to peers, forget.

All follows from the record in State: a shard without its record is forgotten; one that is not recorded here yet gets
its checksums and is recorded; one with fewer copies than asked for is sent on by the first node that has one.  So the
same look at a shard serves a new one, one whose copy was lost with its node, and one that is no longer kept.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from laggard.kvstore.checkpoints.complete import ShardKey, ShardRecord, next_peers
from laggard.kvstore.checkpoints.folder import remove_other_shards, shard_file, write_shard_file
from laggard.kvstore.checkpoints.job import JobView
from laggard.kvstore.checkpoints.layout import digest, sums_of
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
    sums: bytes | None = None  # its checksums, once they are known
    is_own: bool = False  # whether a program of this node saved it
    is_in_work: bool = False
    is_settled: bool = False


class Holdings:
    """The shards of one node."""

    def __init__(self, memory: ShardMemory, job: JobView, peers: Peers, directory: Path | None) -> None:
        self._memory = memory  # where they are
        self._job = job  # what State knows of them, and which servers there are
        self._peers = peers  # connections to the others
        self._directory = directory  # shared directory for a further copy; None: there is none
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._avoided: dict[str, float] = {}
        self._told: set[str] = set()
        self._workers = ThreadPoolExecutor(N_WORKERS, "copies")
        self.changed = threading.Condition()

    def add(self, held: Held) -> None:
        """Hold a shard from now on, in place of an earlier one for the same step."""
        with self._lock:
            before = self._held.get(held.key.record)
            self._held[held.key.record] = held
        if before is not None:
            self._memory.give_back(before.file)
        self.look()

    def add_copy(self, held: Held) -> str:
        """Hold a copy that a peer has sent, and record it; return why not, empty if it is recorded."""
        if self.find(held.key.record, held.id) is not None:
            self._memory.give_back(held.file)
            return ""  # it was sent twice
        held.is_in_work = True
        self.add(held)
        self._work_on(held)
        if self.find(held.key.record, held.id) is None:
            return "it is no longer wanted"
        self.look()
        return ""

    def find(self, key: str, shard_id: str) -> Held | None:
        """Return a shard, if it is here."""
        with self._lock:
            held = self._held.get(key)
        return held if held is not None and held.id == shard_id else None

    def is_waiting(self) -> bool:
        """Return whether there are shards that do not have all their copies yet."""
        with self._lock:
            return any(not held.is_settled for held in self._held.values())

    def keep_looking(self) -> None:
        """Look at the shards whenever there is reason to, for ever."""
        before = None
        while True:
            try:
                self._memory.relieve()
                now = self._job.situation()
                if now != before or self.is_waiting():
                    self.look()
                if now != before:
                    self._sweep_directory()
                before = now
            except (KVStoreError, redis.RedisError, OSError) as error:  # the state server is being restarted
                _log.warning("the situation of the job cannot be read: %s", error)
            time.sleep(LOOK_INTERVAL_S)

    def look(self) -> None:
        """Have the workers look at every shard that none of them works on."""
        with self._lock:
            due = [held for held in self._held.values() if not held.is_in_work]
            for held in due:
                held.is_in_work = True
        for held in due:
            self._workers.submit(self._work_on, held)

    def _work_on(self, held: Held) -> None:
        try:
            held.is_settled = self._tend(held)
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
            held.is_in_work = False
            with self.changed:
                self.changed.notify_all()

    def _tend(self, held: Held) -> bool:
        """Do what is to be done about a shard; return whether that is all."""
        record = self._job.record(held.key)
        if record is None or record.id != held.id:
            self._forget(held)
            return True
        with self._memory.reading(held.file) as file:
            if file is None:
                return True
            content = file.content()
            if held.sums is None:
                held.sums = sums_of(content)
            if record.copies.get(self._job.host) != self._job.server:
                record = self._record_copy(held)
            done = self._send_on(held, record, content)
            if record.directory and not record.in_directory and self._is_first(record):
                self._write_to_directory(held, content)
        return done

    def _record_copy(self, held: Held) -> ShardRecord:
        sums = digest(held.sums or b"")
        host, server = self._job.host, self._job.server
        return self._job.change_record(
            held.key, held.id, lambda record: replace(record, copies={**record.copies, host: server}, sums=sums)
        )

    def _is_first(self, record: ShardRecord) -> bool:
        """Return whether this is the one of the servers with a copy that sees to the others."""
        return record.holders(self._job.registry.ids())[:1] == [self._job.host]

    def _send_on(self, held: Held, record: ShardRecord, content: memoryview) -> bool:
        servers = self._job.registry.read()
        holders = record.holders({host: each.server for host, each in servers.items()})
        missing = min(record.asked, len(servers)) - len(holders)
        if missing <= 0 or holders[:1] != [self._job.host]:
            return len(holders) >= record.asked
        hosts = [host for host in self._job.ring() if host in servers]
        for host in self._willing(next_peers(self._job.host, hosts, holders)):
            try:
                self._peers.put(servers[host], held.key.record, held.id, held.sums or b"", content)
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
            write_shard_file(self._directory, held.id, content, held.sums or b"")
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

    def _sweep_directory(self) -> None:
        """Remove files of checkpoints that are no longer kept, whose servers were lost before they did."""
        if self._directory is not None and self._job.ring()[:1] == [self._job.host]:
            remove_other_shards(self._directory, self._job.ids)

    def _forget(self, held: Held) -> None:
        if self._directory is not None and held.is_own:
            shard_file(self._directory, held.id).unlink(missing_ok=True)
        with self._lock:
            if self._held.get(held.key.record) is held:
                del self._held[held.key.record]
        self._memory.give_back(held.file)
