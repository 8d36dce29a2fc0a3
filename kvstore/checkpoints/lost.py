"""Which checkpoints were only in the memory of nodes, and so ended with the job that saved them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from laggard.kvstore.checkpoints.manifest import ShardKey, ShardRecord, is_record, shards_in, that_count


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
        complete = {
            each
            for each, found in present.items()
            if found.has_all(each.ranks)
            and all((record := own.get((each, rank))) and record.is_complete for rank in found.records)
        }
        left = that_count(present, own, {}, directory=directory)
        if complete and (newest := max(complete)) not in left:
            yield LostCheckpoint(name, newest.step, left[0].step if left else None)
