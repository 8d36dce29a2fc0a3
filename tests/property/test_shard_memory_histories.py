"""Whatever is taken, prepared, lent and given back in whatever order: what was written stays, within the bound."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laggard.kvstore.checkpoints.memory import NoRoom, ShardMemory
from laggard.kvstore.checkpoints.shard_file import ShardFile, whole_grains, write_at

MIB = 1 << 20
BOUND = 12 * MIB
owners = st.sampled_from("ab")
sizes = st.integers(MIB // 2, 5 * MIB)


class Histories(RuleBasedStateMachine):
    """Two ranks of a node whose memory is sometimes short."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.to_spare = BOUND
        self.memory = ShardMemory(Path(self.folder.name), BOUND, lambda: self.to_spare)
        self.written: dict[ShardFile, bytes] = {}
        self.with_memory: dict[int, int] = {}  # what a program knows of the files' memory, by number
        self.lent: list[tuple[int, int, bytes]] = []

    @rule(owner=owners, size=sizes, byte=st.binary(min_size=1, max_size=1))
    def save(self, owner: str, size: int, byte: bytes) -> None:
        try:
            file = self.memory.take(size, owner)
        except NoRoom:
            used = sum(file.reserved_bytes for file in self.written)
            assert used + whole_grains(size) > BOUND  # it is full of shards, not of spare memory
            return
        assert file not in self.written
        write_at(file.descriptor, 0, byte * size)
        self.written[file] = byte * size
        self.with_memory[file.number] = max(size, self.with_memory.get(file.number, 0))

    @rule(owner=owners, size=sizes)
    def prepare(self, owner: str, size: int) -> None:
        found = self.memory.prepare(size, owner)
        if found is not None:
            number, descriptor = found
            assert number not in {file.number for file in self.written}
            assert os.fstat(descriptor).st_size >= size
            os.posix_fallocate(descriptor, 0, size)
            os.close(descriptor)
            self.with_memory[number] = max(size, self.with_memory.get(number, 0))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(sorted(self.written, key=lambda each: each.number)))
        self.memory.lend(file)
        self.lent.append((os.dup(file.descriptor), file.size_bytes, self.written[file]))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(sorted(self.written, key=lambda each: each.number)))
        del self.written[file]
        self.memory.give_back(file)

    @rule(to_spare=st.sampled_from([-1, MIB, BOUND]))
    def others_need_memory(self, to_spare: int) -> None:
        self.to_spare = to_spare
        self.memory.relieve()
        if to_spare < 0:
            assert len(self.memory.numbers()) == len(self.written)

    @invariant()
    def all_that_was_written_is_there(self) -> None:
        for file, content in self.written.items():
            assert os.pread(file.descriptor, file.size_bytes, 0) == content
        for descriptor, size, content in self.lent:
            assert os.pread(descriptor, size, 0) == content

    @invariant()
    def memory_is_bounded_and_known(self) -> None:
        files = self.memory._files
        assert sum(file.reserved_bytes for file in files) <= BOUND
        assert self.memory._used_bytes() == sum(file.reserved_bytes for file in self.written)
        for file in files:
            held = os.fstat(file.descriptor)
            assert held.st_size == file.reserved_bytes
            assert held.st_blocks * 512 >= self.with_memory.get(file.number, 0)

    def teardown(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self.folder)
            for file in [*self.memory._files]:
                stack.callback(os.close, file.descriptor)
            for descriptor, _, _ in self.lent:
                stack.callback(os.close, descriptor)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
