"""Which checkpoint is the newest complete one, which shards are missing, which are no longer kept, or lost. Pure.

A shard is one key of State, ``NAME/LAUNCH/STEP/RANK-RANKS``: a small one is its value, of a larger one there is a
record under the same key with ``/shard`` behind it.  Which checkpoints are complete follows from which shards have the
copies that they were to have; ``NAME/LAUNCH/STEP/set-aside`` says that no launch goes on from one any more.  Copies are
recorded under the fence of the shard's launch, so that no checkpoint of an old launch becomes complete while the next
one has begun to read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_KEY = r"/(\d+)/(\d+)/(\d+)-(\d+)(/shard)?"
_SUFFIX = "/shard"
_SET_ASIDE = r"/(\d+)/(\d+)/set-aside"


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A checkpoint. Those of a later launch are newer, whatever their step: that launch restored an earlier state."""

    launch: int
    step: int
    ranks: int


@dataclass(frozen=True, slots=True)
class ShardKey:
    """The part of a checkpoint that one rank saved."""

    name: str  # of the checkpointer
    checkpoint: Checkpoint  # which shard
    rank: int

    @property
    def value(self) -> str:
        """Key of a shard that State itself holds."""
        of = self.checkpoint
        return f"{self.name}/{of.launch}/{of.step}/{self.rank}-{of.ranks}"

    @property
    def owner(self) -> str:
        """Whose memory it goes into: that of the shards that the same rank has saved before."""
        return f"{self.name}/{self.rank}"

    @property
    def record(self) -> str:
        """Key of the record of a shard that the nodes hold."""
        return self.value + _SUFFIX

    @classmethod
    def of_record(cls, key: str) -> ShardKey:
        """Return the shard that a key is the record of."""
        match = re.fullmatch("(?s:(.*))" + _KEY, key)
        if match is None or not match[6]:
            raise ValueError(f"{key!r} is not the record of a shard")
        launch, step, rank, ranks = map(int, match.groups()[1:5])
        return cls(match[1], Checkpoint(launch, step, ranks), rank)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What State says about a shard that the nodes hold."""

    id: str  # tells it from another one that was saved for the same step
    size_bytes: int  # its size
    asked: int  # how many nodes are to have a copy
    directory: bool = False  # whether the shared directory is to have one
    # The nodes that have one: for each host, the id of the shard server that holds it in its memory
    copies: Mapping[str, str] = field(default_factory=dict)
    in_directory: bool = False  # whether the shared directory has one
    sums: int | None = None  # checksum of its checksums; None until they are known

    @property
    def is_complete(self) -> bool:
        """Whether it has the copies that it was to have."""
        return len(self.copies) >= self.asked and self.in_directory >= self.directory

    def holders(self, servers: Mapping[str, str]) -> list[str]:
        """Return the hosts that have a copy now, given the ids of the shard servers that run, by host."""
        return [host for host, server in self.copies.items() if servers.get(host) == server]

    def is_available(self, servers: Mapping[str, str], *, directory: bool) -> bool:
        """Return whether it can be read, given the servers that run and whether there is a shared directory."""
        return bool(self.holders(servers)) or (self.in_directory and directory)

    def to_value(self) -> dict[str, Any]:
        """Return it as a value of State."""
        return asdict(self)

    @classmethod
    def of_value(cls, value: Mapping[str, Any]) -> ShardRecord:
        """Read it from State."""
        return cls(**value)


@dataclass(slots=True)
class Found:
    """The shards of one checkpoint in State."""

    values: set[int] = field(default_factory=set)  # ranks whose shard State itself holds
    records: set[int] = field(default_factory=set)  # ranks with a record

    @property
    def ranks(self) -> set[int]:
        """The ranks that have saved their shard."""
        return self.values | self.records

    def has_all(self, ranks: int) -> bool:
        """Return whether every rank has saved its shard."""
        return len(self.ranks) == ranks


def shards_in(name: str, keys: Iterable[str]) -> dict[Checkpoint, Found]:
    """Find the shards of a checkpointer among the keys of State."""
    pattern = re.compile(re.escape(name) + _KEY)
    found: defaultdict[Checkpoint, Found] = defaultdict(Found)
    for key in keys:
        if match := pattern.fullmatch(key):
            launch, step, rank, ranks = map(int, match.groups()[:4])
            of = found[Checkpoint(launch, step, ranks)]
            (of.records if match[5] else of.values).add(rank)
    return dict(found)


def set_aside_in(name: str, keys: Iterable[str]) -> set[tuple[int, int]]:
    """Return the launch and the step of each checkpoint of a checkpointer that no launch goes on from any more."""
    pattern = re.compile(re.escape(name) + _SET_ASIDE)
    return {(int(match[1]), int(match[2])) for key in keys if (match := pattern.fullmatch(key))}


def set_aside_key(name: str, checkpoint: Checkpoint) -> str:
    """Return the key of State that says that no launch goes on from a checkpoint any more."""
    return f"{name}/{checkpoint.launch}/{checkpoint.step}/set-aside"


def set_aside_after(name: str, keys: Iterable[str], last: Checkpoint | None) -> dict[str, bool]:
    """Return what sets aside all checkpoints of a checkpointer that are newer than one; all of them if it is None."""
    return {set_aside_key(name, each): True for each in shards_in(name, keys) if last is None or each > last}


def that_can_go_on(name: str, keys: Iterable[str]) -> dict[Checkpoint, Found]:
    """Return the checkpoints of a checkpointer that may be gone on from, once they are complete."""
    keys = list(keys)
    aside = set_aside_in(name, keys)
    return {each: found for each, found in shards_in(name, keys).items() if (each.launch, each.step) not in aside}


def is_record(key: str) -> bool:
    """Return whether a key of State is that of a record of a shard."""
    return re.fullmatch("(?s:.*)" + _KEY, key) is not None and key.endswith(_SUFFIX)


def may_change(key: ShardKey, record: ShardRecord | None, shard_id: str, launch: int) -> bool:
    """Return whether a shard server may add to the record of a shard that it has."""
    if record is None or record.id != shard_id:
        return False
    return key.checkpoint.launch >= launch or record.is_complete


def that_count(
    present: Mapping[Checkpoint, Found],
    records: Mapping[tuple[Checkpoint, int], ShardRecord],
    servers: Mapping[str, str] | None,
    *,
    directory: bool,
) -> list[Checkpoint]:
    """Return the checkpoints that are complete and can be read, the newest first; servers None: all complete ones."""

    def counts(each: Checkpoint) -> bool:
        found = [records.get((each, rank)) for rank in present[each].records]
        return present[each].has_all(each.ranks) and all(
            record is not None
            and record.is_complete
            and (servers is None or record.is_available(servers, directory=directory))
            for record in found
        )

    return sorted(filter(counts, present), reverse=True)


def under_way(keys: Iterable[str], read: Callable[[str], ShardRecord | None], launch: int) -> int:
    """Return how many shards of checkpoints that every rank of a launch has saved lack copies."""
    records = [ShardKey.of_record(key) for key in keys if is_record(key)]
    own = [key for key in records if key.checkpoint.launch == launch]
    saved = Counter((key.name, key.checkpoint) for key in own)
    whole = [key for key in own if saved[key.name, key.checkpoint] == key.checkpoint.ranks]
    return sum(record is not None and not record.is_complete for record in (read(key.record) for key in whole))


def no_longer_kept(
    found: Iterable[Checkpoint], complete: Sequence[Checkpoint], keep: int, launch: int
) -> set[Checkpoint]:
    """Return which checkpoints to delete."""
    kept = complete[:keep]

    def goes(each: Checkpoint) -> bool:
        if each in kept:
            return False
        is_overtaken = bool(kept) and each < kept[0]
        return is_overtaken or each.launch < launch

    return {each for each in found if goes(each)}


def next_peers(host: str, hosts: Sequence[str], have: Iterable[str]) -> list[str]:
    """Return the nodes that may take a copy from a host, in the order in which to ask them."""
    # `hosts` are the nodes of the launch in their order, then its reserve, and `have` those that have a copy already.
    # Those after the host in this ring come first.
    at = hosts.index(host) + 1 if host in hosts else 0
    without = {host, *have}
    return [each for each in (*hosts[at:], *hosts[:at]) if each not in without]


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest checkpoint of a checkpointer that is complete and can be read, and the one before it."""

    name: str
    checkpoint: Checkpoint
    before: Checkpoint


def newest_of_each(
    keys: Iterable[str], read: Callable[[str], ShardRecord | None], servers: Mapping[str, str], *, directory: bool
) -> Iterator[Newest]:
    """Yield the newest checkpoint of each checkpointer that can be read, if there is an older one, too."""
    keys = list(keys)
    records = {ShardKey.of_record(key): record for key in keys if is_record(key) and (record := read(key))}
    for name in sorted({match[1] for key in keys if (match := re.fullmatch("(?s:(.*?))" + _KEY, key))}):
        own = {(key.checkpoint, key.rank): record for key, record in records.items() if key.name == name}
        complete = that_count(that_can_go_on(name, keys), own, servers, directory=directory)
        if len(complete) > 1:
            yield Newest(name, complete[0], complete[1])


@dataclass(frozen=True, slots=True)
class LostCheckpoint:
    """The newest checkpoint of an earlier job, if its shards are nowhere any more."""

    name: str  # of its checkpointer
    step: int  # its step
    left: int | None  # step of the newest one that can still be read; None: there is none

    def __str__(self) -> str:
        left = "none is left" if self.left is None else f"the newest that is left is that of step {self.left}"
        return f"the newest {self.name}, of step {self.step}, was only in the memory of nodes and is lost: {left}"


def lost_with_job(
    keys: Iterable[str], read: Callable[[str], ShardRecord | None], *, directory: bool
) -> Iterator[LostCheckpoint]:
    """Yield what is lost of each checkpointer, before the first shard server of a new job runs."""
    keys = list(keys)
    records = {ShardKey.of_record(key): record for key in keys if is_record(key) and (record := read(key))}
    for name in sorted({key.name for key in records}):
        present = shards_in(name, keys)
        own = {(key.checkpoint, key.rank): record for key, record in records.items() if key.name == name}
        complete = that_count(present, own, None, directory=directory)
        left = that_count(present, own, {}, directory=directory)
        if complete and complete[0] not in left:
            yield LostCheckpoint(name, complete[0].step, left[0].step if left else None)
