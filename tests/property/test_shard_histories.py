"""Whatever is saved, copied and lost in whatever order: what is offered is whole, of one launch, and can be read."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from laggard.kvstore.checkpoints.complete import (
    Checkpoint,
    ShardKey,
    ShardRecord,
    may_change,
    next_peers,
    no_longer_kept,
    shards_in,
    that_count,
)

NAME, RANKS, HOSTS, KEEP = "c", 2, ("a", "b", "c"), 2
host = st.sampled_from(HOSTS)
rank = st.sampled_from(range(RANKS))


class Histories(RuleBasedStateMachine):
    """Two ranks on nodes a and b of three; shards are copied by the rules of the shard servers."""

    def __init__(self) -> None:
        super().__init__()
        self.launch = self.saved = 0
        self.servers = {each: f"{each}0" for each in HOSTS}
        self.state: dict[str, ShardRecord] = {}
        self.held: set[tuple[str, str, str]] = set()  # server, key, id: what is in memory
        self.steps = [0] * RANKS
        self.lost_since_repair = False
        self.newest_safe: Checkpoint | None = None

    def counting(self) -> list[Checkpoint]:
        present = shards_in(NAME, self.state)
        records = {
            (each, rank): self.state[ShardKey(NAME, each, rank).record]
            for each, found in present.items()
            for rank in found.records
        }
        return that_count(present, records, self.servers, directory=False)

    @rule(rank=rank)
    def save(self, rank: int) -> None:
        """A rank saves its next step: first what is old goes, then there is a record without copies."""
        if rank == 0:
            old = no_longer_kept(shards_in(NAME, self.state), self.counting(), KEEP, self.launch)
            for key in [key for key in self.state if ShardKey.of_record(key).checkpoint in old]:
                del self.state[key]
        self.steps[rank] += 1
        self.saved += 1
        key = ShardKey(NAME, Checkpoint(self.launch, self.steps[rank], RANKS), rank).record
        self.state[key] = ShardRecord(str(self.saved), 1, 2)
        self.held.add((self.servers[HOSTS[rank]], key, str(self.saved)))

    @rule(host=host)
    def record(self, host: str) -> None:
        """A node records what it holds and State does not know of."""
        for server, key, shard_id in sorted(self.held):
            if server == self.servers[host]:
                self.add_copy(host, key, shard_id)

    @rule(host=host)
    def send(self, host: str) -> None:
        """A node sends what lacks copies to the next node; the copy is recorded there."""
        for server, key, shard_id in sorted(self.held):
            record = self.state.get(key)
            if server != self.servers[host] or not may_change(ShardKey.of_record(key), record, shard_id, self.launch):
                continue
            holders = record.holders(self.servers) if record else []
            for peer in next_peers(host, HOSTS, holders)[: 2 - len(holders)]:
                self.held.add((self.servers[peer], key, shard_id))
                self.add_copy(peer, key, shard_id)

    def add_copy(self, host: str, key: str, shard_id: str) -> None:
        record = self.state.get(key)
        if record is not None and may_change(ShardKey.of_record(key), record, shard_id, self.launch):
            self.state[key] = replace(record, copies={**record.copies, host: self.servers[host]})

    @rule(host=host)
    def lose(self, host: str) -> None:
        """A node is lost with its memory, and the next launch begins: its ranks go on from what is offered."""
        offered = self.counting()
        redundant = [each for each in offered if self.copies_of(each) >= 2]
        self.held = {each for each in self.held if each[0] != self.servers[host]}
        self.servers[host] = f"{host}{self.saved}-{self.launch}"
        self.relaunch()
        if redundant:
            assert self.counting()[0] >= redundant[0], "one node was lost, and with it a checkpoint that had two copies"

    def copies_of(self, each: Checkpoint) -> int:
        keys = [ShardKey(NAME, each, rank).record for rank in range(RANKS)]
        return min(len(self.state[key].holders(self.servers)) for key in keys)

    @rule()
    def relaunch(self) -> None:
        """The next launch begins; what is offered now must not change by what old servers still do."""
        self.launch += 1
        offered = self.counting()
        for each in HOSTS:
            self.record(each)
            self.send(each)
        assert self.counting() == offered, "a checkpoint of an old launch became complete under the readers"
        self.steps = [offered[0].step if offered else 0] * RANKS

    @invariant()
    def what_is_offered_is_whole_and_there(self) -> None:
        for each in self.counting():
            for rank in range(RANKS):
                key = ShardKey(NAME, each, rank).record
                record = self.state[key]
                holders = record.holders(self.servers)
                assert holders, f"{key} is offered, and nobody has it"
                for holder in holders:
                    assert (self.servers[holder], key, record.id) in self.held, f"{holder} does not have {key}"


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_histories = Histories.TestCase
