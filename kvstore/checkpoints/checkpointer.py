"""Checkpoints: one shard per rank, complete once every shard has the copies that it was to have, the last few kept.

State has the small shards, and of the others a record (:mod:`laggard.kvstore.checkpoints.complete`): these lie in the
memory of the nodes, each on the rank's own node and on a peer, and, if the job has one, in a shared directory.  Shards
of different launches never form one checkpoint, since two launches may reach a step differently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from laggard.kvstore.checkpoints.complete import (
    Checkpoint,
    Found,
    ShardKey,
    ShardRecord,
    no_longer_kept,
    set_aside_after,
    set_aside_key,
    shards_in,
    that_can_go_on,
    that_count,
)
from laggard.kvstore.checkpoints.layout import LeafDigests, Plan, plan
from laggard.kvstore.checkpoints.node_store import NodeStore, current_store
from laggard.kvstore.checkpoints.resharding import Regions, even_regions, open_tree, reshard
from laggard.kvstore.checkpoints.shard import Shard
from laggard.kvstore.checkpoints.stores import FolderStore, Unreadable
from laggard.kvstore.errors import (
    CorruptValueError,
    DamagedCheckpointError,
    NoCheckpointError,
    ShardMemoryError,
    ShardServerError,
)
from laggard.kvstore.state.local_state import is_outside_jobs
from laggard.kvstore.state.mapping import State, Transaction
from laggard.kvstore.values.codec import encode
from laggard.kvstore.values.decoding import Value

ShardStore: TypeAlias = NodeStore | FolderStore
"""Where shards go that are no values of State."""

_log = logging.getLogger(__name__)

# Smaller shards are values of State, which survives more and needs nothing else.
SMALL_BYTES = 1 << 20
# How often to ask whether copies are made: at most this share of the time so far lies between two questions.
POLL_SHARE, SHORTEST_POLL_S, POLL_S = 0.25, 0.002, 0.05
# Who saves faster than copies can be made waits for them up to this long.
ROOM_DEADLINE_S = 60.0


class Checkpointer:
    """Saves trees of arrays, and finds the newest complete checkpoint after a relaunch.

    A shard of more than 1 MiB goes into the memory of this process's node at once, and from there, in the background,
    to another node and, with ``--checkpoint-dir``, to a shared directory; in a program without a job, into a file
    beside its State.  Smaller ones are in State.

    Parameters
    ----------
    state : State
        Where the manifest is.
    name : str
        Prefix of its keys; a program with several checkpointers gives each its own.
    rank, ranks : int
        Which shard belongs to this process, and how many there are.
    keep : int
        How many complete checkpoints to keep; while one is saved, the nodes need room for one more, and with room for
        yet another one, memory is ready before each save.
    copies : int
        On how many nodes to keep each shard, its own included; on all of them if there are fewer.

    Attributes
    ----------
    rank, ranks : int
        As given.

    Examples
    --------
    >>> checkpoints = Checkpointer(State.current(), rank=rank, ranks=ranks)  # doctest: +SKIP
    >>> step = checkpoints.latest()  # doctest: +SKIP
    >>> weights = initial() if step is None else checkpoints.restore(step)  # doctest: +SKIP
    """

    def __init__(
        self, state: State, *, name: str = "checkpoint", rank: int = 0, ranks: int = 1, keep: int = 2, copies: int = 2
    ) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank is {rank}; it must be at least 0 and below ranks, which is {ranks}")
        if keep < 1:
            raise ValueError(f"keep is {keep}; it must be at least 1")
        if copies < 1:
            raise ValueError(f"copies is {copies}; it must be at least 1")
        self._state = state
        self._name = name
        self.rank = rank
        self.ranks = ranks
        self._keep = keep
        self._copies = copies
        self._store = _store_of(state)

    def prepare(self, size_bytes: int) -> None:
        """Have memory ready for this rank's first shard, in the background.

        A save that finds memory ready blocks the program for a plain copy, the first one otherwise for several times
        as long.  For later saves, and after `restore`, it is prepared without this.

        Parameters
        ----------
        size_bytes : int
            About how large the shard will be; one that is larger is saved too.
        """
        if self._store is not None and size_bytes > SMALL_BYTES:
            self._have_ready(self._store, size_bytes)

    def save(self, step: int, tree: Value, digests: LeafDigests | None = None) -> None:
        """Save this rank's shard, and delete checkpoints that are no longer kept.

        It returns when the arrays are copied: they may change.  The checkpoint counts a little later, when every rank's
        shard has its copies; see `wait`.

        Parameters
        ----------
        step : int
            Step of the checkpoint, 0 or higher; saving a step again replaces it.
        tree : Value
            Arrays and other values that State can hold, in dicts and lists.
        digests : LeafDigests, optional
            Where to note the digests of large leaves, which take the least while they are copied.

        Raises
        ------
        ShardMemoryError
            If the node's memory has no room for it within the bound.
        ShardServerError
            If the shard server of the node does not answer.
        UnsupportedValueError, FencedError, StateUnavailableError, StateFullError
            As from any write to State.  Whatever the error, earlier checkpoints are untouched.
        """
        key = self._key(step)
        encoded = encode("", tree)  # what is refused is named by its place in the tree
        if encoded.nbytes <= SMALL_BYTES or self._store is None:
            self._save_value(key, tree)
        else:
            self._save_shard(key, self._store, plan(encoded.parts, digests))

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint that can be read, or None if there is none."""
        return next((found.step for found in self._newest_first()), None)

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints that can be read, the newest first."""
        return list(dict.fromkeys(found.step for found in self._newest_first()))

    def set_aside_after(self, step: int | None) -> None:
        """Let no launch go on from a checkpoint that is newer than the one of this step; None: from any.

        Parameters
        ----------
        step : int or None
            As returned by `latest` or `steps`.

        Raises
        ------
        NoCheckpointError
            If there is no complete checkpoint of this step.
        """
        last = None if step is None else self._find(step, 0)[0]
        marks = set_aside_after(self._name, self._state, last)
        self._state.update_with(lambda transaction: transaction.update(marks), is_upkeep=True)

    def agreed_latest(self) -> int | None:
        """Return the same as `latest`, and the same to all ranks of a launch: the first one that asks decides."""
        launch, step = self._state.launch, self.latest()

        def agree(transaction: Transaction) -> int | None:
            found: Any = transaction.get(key := f"{self._name}/latest")
            if found is None or found[0] != launch:
                transaction[key] = found = (launch, step)
            return cast("int | None", found[1])

        return self._state.update_with(agree, is_upkeep=True)

    def restore(self, step: int, *, rank: int | None = None) -> Value:
        """Read a shard.

        Its arrays belong to the caller: they may be changed.  Where the shard is in the memory of this node, they are
        mapped, so memory is needed only for what is changed.

        Parameters
        ----------
        step : int
            As returned by `latest`.
        rank : int, optional
            Whose shard, this rank's by default.

        Raises
        ------
        NoCheckpointError
            If there is no complete checkpoint of this step, or it has no such rank.
        DamagedCheckpointError
            If the shard is damaged; the error names the previous checkpoint.
        """
        found, rank = self._find(step, rank)
        with self._naming(found):
            if (shard := self._shard(found, rank, whole=True)) is not None:
                return shard.value()
            return self._state[self._key_of(found, rank).value]

    def ranks_of(self, step: int) -> int:
        """Return how many ranks saved the checkpoint of this step.

        Raises
        ------
        NoCheckpointError
            If there is no complete checkpoint of this step.
        """
        return self._find(step, 0)[0].ranks

    def wait(self, step: int, timeout_s: float = 60.0) -> bool:
        """Wait until the checkpoint that this launch saved of a step counts; return False if it does not in time."""
        began_s = time.monotonic()
        wanted = Checkpoint(self._state.launch, step, self.ranks)
        while wanted not in self._complete(step):
            waited_s = time.monotonic() - began_s
            if waited_s > timeout_s:
                return False
            time.sleep(min(POLL_S, max(SHORTEST_POLL_S, POLL_SHARE * waited_s)))
        return True

    def restore_part(self, step: int, regions: Regions | None = None) -> Value:
        """Read this rank's part of a checkpoint that any number of ranks saved.

        Parameters
        ----------
        step : int
            As returned by `latest`.
        regions : callable, optional
            Which elements of each `Block` this rank wants: called with its path in the tree, the shape of the whole
            array, and the regions that were saved, it returns a `Region`.  By default each array is divided evenly
            among the ranks along the axis that it was split along.

        Returns
        -------
        Value
            What `save` was given, with these elements in place of those saved; what is not in a `Block` comes from the
            shard of this rank, or, if there are more ranks now, from those of the first ranks again.

        Raises
        ------
        NoCheckpointError, DamagedCheckpointError
            As from `restore`.
        MissingElementsError
            If no rank saved some of the elements; it names them.
        ReshardingError
            If the ranks disagree about an array, or it is split along several axes and there is no `regions`.
        """
        return reshard(self.open_trees(step), even_regions(self.rank, self.ranks) if regions is None else regions)

    def open_trees(self, step: int) -> list[Value]:
        """Open the shards of all ranks for `reshard`, the one of this rank first, without reading what is large."""
        n_saved = self.ranks_of(step)
        return [self.open_tree(step, (self.rank + n) % n_saved) for n in range(n_saved)]

    def open_tree(self, step: int, rank: int) -> Value:
        """Open the shard of one rank like this."""
        return open_tree(self._open(step, rank))

    def _open(self, step: int, rank: int) -> Shard:
        """Return a shard that is read leaf by leaf; of one on another node, only what is read is fetched."""
        found, rank = self._find(step, rank)
        with self._naming(found):
            if (shard := self._shard(found, rank, whole=False)) is not None:
                return shard
            key = self._key_of(found, rank).value
            return Shard.whole(key, plan(encode(key, self._state[key]).parts).content())

    def _key(self, step: int) -> ShardKey:
        if step < 0:
            raise ValueError(f"step {step} is negative; steps are numbered from 0")
        return self._key_of(Checkpoint(self._state.launch, step, self.ranks), self.rank)

    def _key_of(self, found: Checkpoint, rank: int) -> ShardKey:
        return ShardKey(self._name, found, rank)

    def _save_value(self, key: ShardKey, tree: Value) -> None:
        def change(transaction: Transaction) -> Value:
            transaction[key.value] = tree
            return transaction.pop(key.record, None)

        if self._store is None:
            self._state[key.value] = tree
        elif (replaced := self._state.update_with(change)) is not None:
            self._store.forget([ShardRecord.of_value(replaced).id])
        self._drop_old()

    def _save_shard(self, key: ShardKey, store: ShardStore, planned: Plan) -> None:
        self._drop_old()  # first, since the memory is needed
        try:
            self._hand_over(key, store, planned)
        except ShardServerError:  # it has ended meanwhile, and is started again
            self._hand_over(key, store, planned)
        if self._state.file is not None:  # it is complete already
            self._drop_old()

    def _hand_over(self, key: ShardKey, store: ShardStore, planned: Plan) -> None:
        """Write a shard; if there is no room, wait for that of earlier ones whose copies are under way."""

        def change(transaction: Transaction, record: ShardRecord) -> Value:
            before = transaction.get(key.record)
            transaction[key.record] = record.to_value()
            transaction.pop(key.value, None)
            return before

        def announce(record: ShardRecord) -> None:
            replaced = self._state.update_with(lambda transaction: change(transaction, record))
            store.forget([] if replaced is None else [ShardRecord.of_value(replaced).id])

        until_s = time.monotonic() + ROOM_DEADLINE_S
        while True:
            try:
                store.write(planned, key, self._copies, announce)
                break
            except ShardMemoryError as full:
                present = shards_in(self._name, self._state)
                can_free = len(present) > self._keep or len(self._complete_among(present)) < len(present)
                if full.need_bytes > full.bound_bytes or not can_free or time.monotonic() > until_s:
                    raise
            time.sleep(POLL_S)
            self._drop_old(by_any_rank=True)
        self._have_ready(store, planned.size_bytes)

    def _have_ready(self, store: ShardStore, size_bytes: int) -> None:
        """Have memory ready for this rank's next shard."""
        store.prepare(self._key(0).owner, size_bytes)

    def _find(self, step: int, rank: int | None) -> tuple[Checkpoint, int]:
        rank = self.rank if rank is None else rank
        found = next(iter(self._complete(step)), None)
        if found is None:
            complete = [found.step for found in self._newest_first()]
            raise NoCheckpointError(step, f"complete ones: {complete or 'none'}, newest first")
        if rank >= found.ranks:
            raise NoCheckpointError(step, f"it has shards of rank 0 to {found.ranks - 1}, not of rank {rank}")
        return found, rank

    def _shard(self, found: Checkpoint, rank: int, *, whole: bool) -> Shard | None:
        """Return a shard that the nodes hold; None if State holds it."""
        key = self._key_of(found, rank)
        if self._store is None or (record := self._record(key)) is None:
            return None
        shard = self._store.read(key, record, whole=whole)
        if rank == self.rank:  # it will save one like it
            self._have_ready(self._store, record.size_bytes)
        return shard

    @contextmanager
    def _naming(self, found: Checkpoint) -> Iterator[None]:
        """Name the checkpoint in the errors of a block that reads it, and the one before it."""
        try:
            yield
        except (CorruptValueError, Unreadable) as error:
            reason = error.reason if isinstance(error, CorruptValueError) else str(error)
            before = next((each.step for each in self._newest_first() if each < found), None)
            raise DamagedCheckpointError(found.step, reason, before) from error
        except KeyError:
            raise NoCheckpointError(found.step, "another rank has just deleted it") from None

    def _record(self, key: ShardKey) -> ShardRecord | None:
        value = self._state.get(key.record)
        return None if value is None else ShardRecord.of_value(value)

    def _complete(self, step: int) -> list[Checkpoint]:
        """List the complete checkpoints of a step that can be read, newest first."""
        present = that_can_go_on(self._name, self._state)
        return self._complete_among({each: found for each, found in present.items() if each.step == step})

    def _newest_first(self) -> Iterator[Checkpoint]:
        """Yield the complete checkpoints that can be read; the records of one are read when it is its turn."""
        present = that_can_go_on(self._name, self._state)
        for each in sorted(present, reverse=True):
            yield from self._complete_among({each: present[each]})

    def _complete_among(self, present: Mapping[Checkpoint, Found]) -> list[Checkpoint]:
        store = self._store
        servers = store.servers() if store is not None and any(found.records for found in present.values()) else {}
        records = {
            (each, rank): record
            for each, found in present.items()
            if store is not None and found.has_all(each.ranks)
            for rank in found.records
            if (record := self._record(self._key_of(each, rank))) is not None
        }
        return that_count(present, records, servers, directory=store is not None and store.has_directory)

    def _drop_old(self, *, by_any_rank: bool = False) -> None:
        """Delete checkpoints beyond those kept, and incomplete ones that nothing can complete."""
        present = shards_in(self._name, self._state)
        if self.rank > 0 and not by_any_rank and any(found.records for found in present.values()):
            return  # one rank reads all records
        complete = self._complete_among(that_can_go_on(self._name, self._state))
        old = no_longer_kept(present, complete, self._keep, self._state.launch)
        shards = [self._key_of(each, rank) for each in old for rank in present[each].ranks]
        records = [self._record(key) for key in shards]
        if shards:
            marks = [set_aside_key(self._name, each) for each in old]
            self._state.discard(*(key for shard in shards for key in (shard.value, shard.record)), *marks)
        if self._store is not None:
            self._store.forget(record.id for record in records if record is not None)


def _store_of(state: State) -> ShardStore | None:
    """Return where shards go; None: all of them into State, which is not that of this process's job."""
    if state.file is not None:
        return FolderStore(state.file.with_name(f"{state.file.name}.shards"))
    return None if is_outside_jobs() else current_store()
